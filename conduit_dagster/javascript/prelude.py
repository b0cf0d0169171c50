"""JavaScript environment of a script: Conduit's helpers, with deterministic time and random numbers.

A record is passed as JSON: ``[position, operation, metadata, kinds, key, before, after]``. Each of the last three is a
document, or raw data as text with one character per byte; ``kinds`` distinguishes them by ``d`` or ``r``. In both
directions null stands for a missing value.
"""

from __future__ import annotations

PRELUDE = r"""
"use strict";
(() => {
  const { parse, stringify } = JSON;  // a script may replace them
  const bytesOf = (latin) => {
    const bytes = new Uint8Array(latin.length);
    for (let i = 0; i < latin.length; i++) bytes[i] = latin.charCodeAt(i);
    return Object.setPrototypeOf(bytes, RawData.prototype);
  };
  const latinOf = (bytes) => {
    let text = "";
    for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode.apply(null, bytes.subarray(i, i + 4096));
    return text;
  };
  globalThis.RawData = function (text) {
    return bytesOf(text === undefined ? "" : unescape(encodeURIComponent(String(text))));
  };
  RawData.prototype = Object.create(Uint8Array.prototype, {
    toString: { value() { return decodeURIComponent(escape(latinOf(this))); } },
  });
  globalThis.StructuredData = function () { return {}; };
  globalThis.Record = function () {
    return { Position: null, Operation: "", Metadata: {}, Key: null, Payload: { Before: null, After: null } };
  };

  let said = [];
  const event = (level) => {
    const fields = {};
    const made = {};
    for (const kind of ["Str", "Int", "Float64", "Bool", "Any", "Interface"])
      made[kind] = (name, value) => { fields[name] = value; return made; };
    made.Err = (error) => { fields.error = String(error); return made; };
    made.Msg = (text) => { said.push([level, String(text), fields]); };
    made.Msgf = (text, ...values) => made.Msg(String(text).replace(/%[a-z]/g, () => String(values.shift())));
    made.Send = () => made.Msg("");
    return made;
  };
  globalThis.logger = {};
  for (const level of ["Trace", "Debug", "Info", "Warn", "Error"])
    logger[level] = () => event(level.toLowerCase());

  let now = 0, seed = 0;
  const Real = Date;
  globalThis.Date = class Date extends Real {
    constructor(...parts) { if (parts.length) super(...parts); else super(now); }
    static now() { return now; }
  };
  Math.random = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  const given = (kind, part) => (part !== null && kind === "r" ? bytesOf(part) : part);
  const taken = (part, name, kinds) => {
    if (part === null || part === undefined) { kinds.push("d"); return null; }
    if (part instanceof Uint8Array) { kinds.push("r"); return latinOf(part); }
    if (typeof part === "object" && !Array.isArray(part)) { kinds.push("d"); return part; }
    throw new TypeError(`${name} is ${Array.isArray(part) ? "a list" : "a " + typeof part}: it takes a document, ` +
      "RawData(text) or null");
  };
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const base64 = (bytes) => {
    let text = "";
    for (let i = 0; i < bytes.length; i += 3) {
      const left = bytes.length - i, three = (bytes[i] << 16) | ((bytes[i + 1] || 0) << 8) | (bytes[i + 2] || 0);
      text += digits[three >> 18] + digits[(three >> 12) & 63];
      text += (left > 1 ? digits[(three >> 6) & 63] : "=") + (left > 2 ? digits[three & 63] : "=");
    }
    return text;
  };
  // as Conduit writes what is inside a document
  const plain = (_, value) => (value === undefined ? null : value instanceof Uint8Array ? base64(value) : value);
  const texts = (metadata) => {
    const found = Object.create(null);  // a name may be __proto__
    for (const name of Object.keys(metadata || {})) found[name] = metadata[name] == null ? "" : String(metadata[name]);
    return found;
  };
  const written = (result) => {
    if (result === null || result === undefined) return null;
    if (typeof result !== "object" || typeof result.Payload !== "object" || result.Payload === null)
      throw new TypeError("process returned no record: return the one that was given, a Record() or null");
    const kinds = [];
    const parts = [
      taken(result.Key, "Key", kinds),
      taken(result.Payload.Before, "Payload.Before", kinds),
      taken(result.Payload.After, "Payload.After", kinds),
    ];
    return [String(result.Operation), texts(result.Metadata), kinds.join(""), ...parts];
  };
  globalThis.__begin = (time) => { now = time; };
  globalThis.__call = (text, chance) => {
    seed = chance;
    said = [];
    const [position, operation, metadata, kinds, key, before, after] = parse(text);
    const record = {
      Position: bytesOf(position), Operation: operation, Metadata: metadata, Key: given(kinds[0], key),
      Payload: { Before: given(kinds[1], before), After: given(kinds[2], after) },
    };
    let result = null, failure = null;
    try { result = written(process(record)); }
    catch (error) { failure = `${error}${error && error.stack ? " " + error.stack.trim() : ""}`; }
    return stringify(said.length ? [result, failure, said] : [result, failure], plain);
  };
})();
"""
