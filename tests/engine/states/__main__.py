import sys

from tests.engine.states import record

sys.stdout.writelines(f"recorded {name}\n" for name in record())
