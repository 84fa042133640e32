// node run.mjs FOLDER: the tests with the scripts of a folder. Prints what went wrong, by test, as JSON.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const text = readFileSync(`${folder}/start.json`, "utf8");

// As much of a page as modules ask for when they are loaded. Every letter is 5 px wide.
const context = { measureText: (words) => ({ width: 5 * words.length }) };
globalThis.document = { getElementById: () => ({ textContent: text }), createElement: () => ({ getContext: () => context }), documentElement: {} };
globalThis.location = { pathname: "/", hash: "", search: "" };
globalThis.matchMedia = () => ({ matches: false, addEventListener: () => {} });
globalThis.getComputedStyle = () => ({ colorScheme: "light", getPropertyValue: (name) => ({ "--ink": " #101418 " })[name] ?? "" });
globalThis.addEventListener = () => {};
globalThis.ResizeObserver = class { observe() {} };
globalThis.window = globalThis;

const { failures } = await import("./tests.mjs");
process.stdout.write(JSON.stringify(await failures((name) => import(pathToFileURL(`${folder}/${name}`)))));
process.exit(0);
