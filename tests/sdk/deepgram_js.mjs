#!/usr/bin/env node
// Streams a WAV file through the vendor's own @deepgram/sdk and prints what an application sees.
//
//   node deepgram_js.mjs BASE_URL FILE.wav [options]
//
// Every event is one JSON line on stdout. Exit status:
//   0  handshake accepted, Metadata received, server closed with 1000, no error on the way
//   2  bad arguments or unreadable WAV
//   3  never opened
//   4  the stream ended any other way
//
// The SDK reconnects by itself after every close code but 1000. Here it may not, so that one run is one
// connection; --reconnects N lets it behave as in an application.
import fs from "node:fs";
import { DeepgramClient } from "@deepgram/sdk";

const ODD_FRAME = 1323; // bytes; neither a whole number of samples nor of milliseconds at any usual rate
const VALUES = {
  "api-key": "test-key", "access-token": "", ttl: "", model: "nova-3", "chunk-ms": "100", split: "even", speed: "1",
  wait: "15", reconnects: "0", "raw-frames": "0", "finalize-at": "0", "keepalive-at": "0",
};
const FLAGS = ["subprotocol-auth", "grant"];

function fail(text) {
  console.error(text);
  process.exit(2);
}

function parseArguments(words) {
  const args = { ...VALUES, params: {}, places: [], flags: new Set() };
  for (let i = 0; i < words.length; i++) {
    const name = words[i].replace(/^--/, "");
    if (!words[i].startsWith("--")) args.places.push(words[i]);
    else if (FLAGS.includes(name)) args.flags.add(name);
    else if (i + 1 === words.length) fail(`--${name} needs a value`);
    else if (name === "param") {
      const [key, ...rest] = words[++i].split("=");
      (args.params[key] ??= []).push(rest.join("="));
    } else if (name in VALUES) args[name] = words[++i];
    else fail(`unknown option --${name}`);
  }
  if (args.places.length !== 2) fail("usage: deepgram_js.mjs BASE_URL FILE.wav [options]");
  for (const [key, list] of Object.entries(args.params)) if (list.length === 1) args.params[key] = list[0];
  return args;
}

function readWav(path) {
  let file;
  try { file = fs.readFileSync(path); } catch (error) { fail(String(error)); }
  if (file.toString("latin1", 0, 4) !== "RIFF") fail(`${path}: not a WAV file`);
  let rate = 0, channels = 0, bits = 0;
  for (let at = 12; at + 8 <= file.length;) {
    const id = file.toString("latin1", at, at + 4), size = file.readUInt32LE(at + 4);
    if (id === "fmt ") {
      channels = file.readUInt16LE(at + 10);
      rate = file.readUInt32LE(at + 12);
      bits = file.readUInt16LE(at + 22);
    }
    if (id === "data") {
      if (bits !== 16) fail(`${path}: need 16-bit PCM`);
      return { rate, channels, pcm: file.subarray(at + 8, Math.min(file.length, at + 8 + size)) };
    }
    at += 8 + size + (size & 1);
  }
  return fail(`${path}: no data`);
}

const begin = Date.now();
const print = (event, fields = {}) => console.log(JSON.stringify({ t: (Date.now() - begin) / 1000, event, ...fields }));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const args = parseArguments(process.argv.slice(2));
const wav = readWav(args.places[1]);
const http = args.places[0].replace(/\/$/, "").replace(/^ws/, "http");
const ws = http.replace(/^http/, "ws");
const credentials = args["access-token"] ? { accessToken: args["access-token"] } : { apiKey: args["api-key"] };
const environment = { base: http, production: ws, agent: ws, agentRest: http };
let client = new DeepgramClient({ ...credentials, environment });
let offer = ["token", args["api-key"]];
if (args.flags.has("grant")) {
  const token = await grant();
  client = new DeepgramClient({ accessToken: token, environment });
  offer = ["bearer", token];
}
const reconnects = Number(args.reconnects), patience = Number(args.wait);
const connection = await client.listen.v1.connect({
  model: args.model, encoding: "linear16", sample_rate: wav.rate, channels: wav.channels, interim_results: "true",
  queryParams: args.params, reconnectAttempts: reconnects,
  ...(args.flags.has("subprotocol-auth") ? { protocols: offer } : {}),
});

const seen = { metadata: false, opened: 0, closes: [], errors: 0, messages: 0 };
let finish;
const finished = new Promise((resolve) => (finish = resolve));
connection.on("open", () => {
  seen.opened++;
  print("open", { n: seen.opened, protocol: connection.socket.protocol, url: connection.socket.url });
});
connection.on("message", (message) => {
  seen.messages++;
  if (message?.type === "Metadata") seen.metadata = true;
  print("message", { data: message });
});
connection.on("error", (error) => {
  seen.errors++;
  print("error", { text: String(error?.message ?? error) });
});
connection.on("close", (event) => {
  seen.closes.push(event.code);
  print("close", { code: event.code, reason: event.reason, wasClean: event.wasClean });
  // A refused upgrade gives its error after the close: let it come first.
  if (event.code === 1000 || seen.closes.length > reconnects) setTimeout(finish, 50);
});
connection.connect();
await Promise.race([connection.waitForOpen().catch(() => {}), finished, sleep(patience * 1000)]);
if (seen.opened) await send();
await Promise.race([finished, sleep(patience * 1000).then(() => print("timeout", { seconds: patience }))]);

const clean = seen.opened === 1 && seen.closes.at(-1) === 1000 && seen.errors === 0 && seen.metadata;
print("verdict", { clean, ...seen });
process.exit(clean ? 0 : seen.opened ? 4 : 3);

/** Swaps the key for a short-lived token. */
async function grant() {
  try {
    const answer = await client.auth.v1.tokens.grant(args.ttl ? { ttl_seconds: Number(args.ttl) } : {});
    print("grant", { expires_in: answer.expires_in });
    return answer.access_token;
  } catch (error) {
    print("rejected", { status: error?.statusCode ?? null, body: error?.body ?? String(error) });
    return process.exit(3);
  }
}

async function send() {
  const even = Math.max(1, Math.floor((wav.rate * Number(args["chunk-ms"])) / 1000)) * 2 * wav.channels;
  const step = args.split === "odd" ? ODD_FRAME : even;
  const speed = Number(args.speed), most = Number(args["raw-frames"]) || Infinity;
  const pause = speed ? (step * 1000) / (2 * wav.channels * wav.rate * speed) : 0;
  try {
    for (let at = 0, number = 1; at < wav.pcm.length && number <= most; at += step, number++) {
      connection.sendMedia(wav.pcm.subarray(at, at + step));
      if (number === Number(args["finalize-at"])) connection.sendFinalize({ type: "Finalize" });
      if (number === Number(args["keepalive-at"])) connection.sendKeepAlive({ type: "KeepAlive" });
      await sleep(pause);
    }
    connection.sendCloseStream({ type: "CloseStream" });
  } catch (error) { // the server went away while we were sending
    seen.errors++;
    print("send_failed", { text: String(error?.message ?? error) });
  }
}
