"""Every parameter of the client is spelled out, typed and documented, and both clients have the same."""

import inspect
import typing

import pytest

from millrace.client import AsyncClient, AsyncFeed, AsyncSubscription, Client, Feed, Subscription

PAIRS = [
    (AsyncClient.__init__, Client.__init__),
    (AsyncClient.connect, Client.connect),
    (AsyncClient.open, Client.open),
    (AsyncClient.subscribe, Client.subscribe),
]
CLASSES = (AsyncClient, AsyncFeed, AsyncSubscription, Client, Feed, Subscription)
# Methods that the client calls itself, and those whose parameters `open` and `subscribe` explain.
INNER = {
    *("broken", "forget", "received", "writable_again"),
    *("ask_again", "credit", "disconnect", "fail", "has", "opened", "pump", "receive", "say", "write_tuples"),
}


def parameters(function):
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=lambda function: function.__qualname__)
def test_both_clients_take_the_same(asynchronous, synchronous):
    assert parameters(asynchronous) == parameters(synchronous)


def public_methods():
    """Methods that programs call; constructors of feeds and subscriptions are called by the client."""
    for owner in CLASSES:
        is_client = owner in (AsyncClient, Client)
        for name, member in vars(owner).items():
            function = inspect.unwrap(getattr(member, "__func__", member))
            public = not name.startswith("_") and name not in INNER and (is_client or name != "connect")
            if inspect.isfunction(function) and (public or (is_client and name == "__init__")):
                yield pytest.param(owner, function, id=f"{owner.__name__}.{name}")


PUBLIC_METHODS = list(public_methods())


@pytest.mark.parametrize(("owner", "function"), PUBLIC_METHODS)
def test_parameters_are_spelled_out_with_types(owner, function):
    kinds = {parameter.kind for parameter in parameters(function)}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    hints = typing.get_type_hints(function, localns={"AsyncClient": AsyncClient})
    assert not [parameter.name for parameter in parameters(function) if parameter.name not in ("self", "cls", *hints)]


@pytest.mark.parametrize(("owner", "function"), PUBLIC_METHODS)
def test_docstrings_explain_each_parameter(owner, function):
    text = (owner if function.__name__ == "__init__" else function).__doc__ or ""
    assert text.strip()
    names = [parameter.name for parameter in parameters(function) if parameter.name not in ("self", "cls")]
    assert not [name for name in names if f" {name}: " not in text]
