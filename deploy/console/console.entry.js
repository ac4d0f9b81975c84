// What the console's modules import from "./vendor/console.js".
export { h, render, Fragment, createContext } from "preact";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
export { default as uPlot } from "uplot";
export { Graph, layout } from "@dagrejs/dagre";
import { h } from "preact";
import htm from "htm";
export const html = htm.bind(h);
