// The demo page: audio from a microphone or the sample to the gateway, words and quota facts back.
// The key lives in the input field only: never in storage, a cookie, the address bar or a query.

const CHUNK_MS = 100;
const BUFFERED_MAX = 1 << 20; // bytes the socket may hold unsent before we stop feeding it
const FINISH_MS = 15_000; // how long the last words may take after CloseStream
const KEY_FORM = /^[A-Za-z0-9._-]+$/; // what a subprotocol name, and so a key, may be made of

const REASONS = {
  "QUOTA-0000": "The budget of this period is used up.",
  "QUOTA-0001": "This session has used up its own cap.",
  "RATE-0000": "The audio came faster than it may be sent.",
  "NET-0000": "The service had nothing to send for too long.",
  "NET-0001": "Neither audio nor a keep-alive came in time.",
  "NET-0002": "The transcription worker was lost, and no other was free.",
  "DATA-0000": "The bytes sent are not audio that can be decoded.",
};
const CODES = {
  1000: "The stream is complete.",
  1001: "The server is going away.",
  1005: "The server closed without giving a reason.",
  1006: "The connection was lost.",
  1008: "The gateway ended the stream by one of its rules.",
  1009: "A message was too large.",
  1011: "Something failed on the server's side.",
  1012: "The gateway is restarting. Start again in a moment.",
  1013: "The gateway is busy. Try again later.",
};
const STATUSES = {
  401: "The key was not accepted.",
  402: "No budget is left for this key.",
  403: "This key may not do that.",
  404: "There is no such endpoint here.",
  429: "Too many streams are open at once.",
  503: "No capacity at the moment.",
};

const at = (id) => document.getElementById(id);
const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

/** Milliseconds as a person reads them: 9.4 s, 3 min 20 s, 2 h 5 min. */
function span(ms) {
  const whole = Math.floor(ms / 1000);
  if (whole < 60) return seconds(ms);
  const [large, small, names] = whole < 3600 ? [whole / 60, whole % 60, ["min", "s"]] : [whole / 3600, (whole / 60) % 60, ["h", "min"]];
  const rest = Math.floor(small) ? ` ${Math.floor(small)} ${names[1]}` : "";
  return `${Math.floor(large)} ${names[0]}${rest}`;
}

// ---- what the page shows ----

function showStatus(state, text) {
  at("status").dataset.state = state;
  at("status").textContent = text;
}

function showLevel(rms) {
  // Speech lies between -60 and 0 dB: a linear bar would hardly move.
  const percent = rms > 0 ? Math.max(0, Math.min(100, 100 + (100 / 60) * 20 * Math.log10(rms))) : 0;
  at("level").firstElementChild.style.transform = `scaleX(${percent / 100})`;
  at("level").setAttribute("aria-valuenow", percent.toFixed(0));
}

const quota = {
  left: null,
  cap: null,

  /** Takes facts over; numbers only, and a cap that is at least what is left. */
  learn(left, cap) {
    if (Number.isFinite(left)) this.left = Math.max(0, left);
    if (Number.isFinite(cap) && cap > 0) this.cap = cap;
    if (this.left === null) return;
    this.cap = Math.max(this.cap ?? 0, this.left);
    this.show();
  },

  show() {
    const share = this.cap ? this.left / this.cap : 0;
    const text = this.cap ? `${span(this.left)} of ${span(this.cap)}` : "nothing left";
    const bar = at("quota");
    bar.dataset.tone = share > 0.25 ? "good" : share > 0.1 ? "low" : "out";
    bar.firstElementChild.style.transform = `scaleX(${share})`;
    bar.setAttribute("aria-valuenow", (share * 100).toFixed(3));
    bar.setAttribute("aria-valuetext", text);
    at("quota-text").textContent = text;
  },

  /** Nothing is known: another key, perhaps another account. */
  forget() {
    this.left = this.cap = null;
    at("quota").dataset.tone = "unknown";
    at("quota").setAttribute("aria-valuetext", "not known yet");
    at("quota-text").textContent = "not known yet";
    at("period").textContent = "";
  },

  /** Asks the gateway. An unknown answer leaves the gauge to the messages of the stream. */
  async ask(key) {
    try {
      const answer = await fetch("/v1/quota", { headers: { Authorization: `Token ${key}` }, cache: "no-store" });
      if (!answer.ok) return;
      const facts = await answer.json();
      this.learn(facts.left_ms, facts.cap_ms);
      const ends = new Date(facts.period?.ends_at ?? NaN);
      const when = Number.isNaN(ends.getTime()) ? "" : ends.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      at("period").textContent = when && `New budget on ${when}`;
    } catch {
      // No answer is no fact; a gateway that is gone shows when the stream starts.
    }
  },
};

function showWords(text, isFinal) {
  at("hint").hidden = true;
  at("partial").textContent = isFinal ? "" : text;
  if (isFinal && text) {
    const line = document.createElement("p");
    line.textContent = text;
    at("finals").append(line);
  }
  at("words").scrollTop = at("words").scrollHeight;
}

function showEnded(tone, title, details) {
  const box = at("ended");
  const lines = [title, ...details.filter(Boolean)].map((text, index) => {
    const line = document.createElement(index ? "p" : "h3");
    line.textContent = text;
    return line;
  });
  box.replaceChildren(...lines);
  box.dataset.tone = tone;
  box.hidden = false;
}

// ---- the two sources; each calls feed(pcm, rms) until stop() ----

/** The microphone, by way of a worklet. Resolves when it runs; `lost` is called if it goes away. */
async function openMicrophone(lost) {
  if (!navigator.mediaDevices) throw new Error("A microphone needs https, or this page on localhost.");
  const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, channelCount: 1 };
  const media = await navigator.mediaDevices.getUserMedia({ audio: plain });
  let context = null;
  const stop = () => {
    media.getTracks().forEach((track) => track.stop());
    if (context && context.state !== "closed") context.close();
  };
  try {
    let input;
    try {
      context = new AudioContext({ sampleRate: 16_000 });
      input = context.createMediaStreamSource(media);
    } catch {
      context?.close(); // some browsers can't resample a microphone: take its own rate
      context = new AudioContext();
      input = context.createMediaStreamSource(media);
    }
    await context.audioWorklet.addModule("/capture.worklet.js");
    await context.resume();
    const samples = Math.round((context.sampleRate * CHUNK_MS) / 1000);
    const capture = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0, processorOptions: { samples } });
    media.getTracks()[0].addEventListener("ended", lost);
    return {
      rate: context.sampleRate,
      start(feed) {
        capture.port.onmessage = ({ data }) => feed(data.pcm, data.rms);
        input.connect(capture);
      },
      stop,
    };
  } catch (fault) {
    stop();
    throw fault;
  }
}

/** The sample, paced like live speech. `finished` is called after its last chunk. */
async function openSample(finished, mayFeed) {
  const answer = await fetch("/sample.wav");
  if (!answer.ok) throw new Error(`The sample can't be had (HTTP ${answer.status}).`);
  const { rate, pcm } = parseWav(await answer.arrayBuffer());
  const size = Math.round((rate * CHUNK_MS) / 1000);
  let timer = null;
  let next = 0;
  return {
    rate,
    start(feed) {
      const begun = performance.now();
      playAloud(0);
      // A throttled tab wakes us late: then all chunks that are due go out together.
      const tick = () => {
        while (next < pcm.length && (next / rate) * 1000 <= performance.now() - begun && mayFeed()) {
          const chunk = pcm.slice(next, next + size);
          next += size;
          feed(chunk.buffer, level(chunk));
        }
        if (next < pcm.length) timer = setTimeout(tick, 20);
        else finished();
      };
      tick();
    },
    stop() {
      clearTimeout(timer);
      at("sound").pause();
    },
    position: () => next / rate,
  };
}

function playAloud(from) {
  if (!at("aloud").checked) return;
  at("sound").currentTime = from;
  at("sound").play().catch(() => showStatus(at("status").dataset.state, "The browser will not play sound"));
}

function level(chunk) {
  let power = 0;
  for (const sample of chunk) power += (sample / 0x8000) ** 2;
  return Math.sqrt(power / Math.max(1, chunk.length));
}

/** Rate and samples of a mono 16-bit WAV file. */
function parseWav(buffer) {
  const view = new DataView(buffer);
  const name = (offset) => String.fromCharCode(...new Uint8Array(buffer, offset, 4));
  let rate = 0;
  if (buffer.byteLength > 12 && name(0) === "RIFF" && name(8) === "WAVE") {
    for (let offset = 12; offset + 8 <= buffer.byteLength; ) {
      const size = view.getUint32(offset + 4, true);
      const body = offset + 8;
      if (name(offset) === "fmt ") {
        const mono16 = view.getUint16(body, true) === 1 && view.getUint16(body + 2, true) === 1;
        if (mono16 && view.getUint16(body + 14, true) === 16) rate = view.getUint32(body + 4, true);
      } else if (name(offset) === "data" && rate) {
        const length = Math.min(size, buffer.byteLength - body) >> 1;
        return { rate, pcm: new Int16Array(buffer.slice(body, body + 2 * length)) };
      }
      offset = body + size + (size % 2);
    }
  }
  throw new Error("The sample is not a mono 16-bit WAV file.");
}

// ---- one stream ----

class Stream {
  constructor(key, source) {
    this.key = key;
    this.source = source;
    this.sentMs = this.chunks = this.skipped = 0;
    this.error = null;
    this.opened = false;
    this.finishing = null;
    const query = new URLSearchParams({
      encoding: "linear16",
      sample_rate: source.rate,
      channels: 1,
      interim_results: true,
      model: "general",
    });
    this.path = `/v1/listen?${query}`;
    const base = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}`;
    this.socket = new WebSocket(base + this.path, ["token", key]);
    this.socket.onopen = () => this.begin();
    this.socket.onmessage = ({ data }) => this.hear(data);
    this.ended = new Promise((resolve) => (this.socket.onclose = resolve));
  }

  begin() {
    this.opened = true;
    if (this.finishing) return this.sayDone();
    showStatus("live", "Listening");
    this.source.start((pcm, rms) => this.feed(pcm, rms));
  }

  mayFeed() {
    return this.socket.bufferedAmount <= BUFFERED_MAX;
  }

  feed(pcm, rms) {
    if (this.socket.readyState !== WebSocket.OPEN || this.finishing) return;
    showLevel(rms);
    if (this.mayFeed()) {
      this.socket.send(pcm);
      this.chunks += 1;
      this.sentMs += (pcm.byteLength / 2 / this.source.rate) * 1000;
    } else {
      this.skipped += 1; // a live source can't wait: this chunk is lost, and counted as such
    }
    at("sent").textContent = seconds(this.sentMs);
    at("chunks").textContent = this.chunks;
    at("skipped").textContent = this.skipped;
  }

  hear(text) {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return;
    }
    const facts = message.voxgate ?? {};
    quota.learn(facts.quota_left_ms, facts.quota_cap_ms);
    if (Number.isFinite(facts.admitted_ms)) at("admitted").textContent = seconds(facts.admitted_ms);
    if (message.type === "Results") {
      showWords(message.channel?.alternatives?.[0]?.transcript ?? "", message.is_final === true);
    } else if (message.type === "Metadata" && !Number.isFinite(facts.admitted_ms)) {
      if (Number.isFinite(message.duration)) at("admitted").textContent = seconds(message.duration * 1000);
    } else if (message.type === "Error") {
      this.error = message.description || message.message || message.variant || "Error without a text";
    }
  }

  /** No more audio; the socket stays open for the last words, on a clock. */
  finish() {
    if (this.finishing) return;
    this.source.stop();
    showLevel(0);
    showStatus("finishing", "Waiting for the last words");
    this.finishing = setTimeout(() => this.socket.close(1000), FINISH_MS);
    if (this.opened) this.sayDone();
  }

  sayDone() {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "CloseStream" }));
  }

  /** Waits for the end, and shows how and why it came. */
  async watch() {
    const { code, reason } = await this.ended;
    clearTimeout(this.finishing);
    this.source.stop();
    showLevel(0);
    at("partial").textContent = "";
    if (!this.opened) return this.explainRefusal();
    const clean = code === 1000 && !this.error;
    const why = REASONS[reason] ?? CODES[code] ?? "The connection was closed.";
    const trace = `Close code ${code}${reason ? `, ${reason}` : ""}`;
    showEnded(clean ? "good" : "bad", clean ? "The stream ended cleanly" : why, [this.error, trace]);
    showStatus(clean ? "ready" : "ended", clean ? "Done" : "Ended");
  }

  /** A browser is not told why a handshake was refused: a plain request with the same key is. */
  async explainRefusal() {
    showStatus("ended", "Refused");
    try {
      const headers = { Authorization: `Token ${this.key}` };
      const answer = await fetch(this.path, { headers, cache: "no-store" });
      const body = await answer.json().catch(() => ({}));
      const wait = answer.headers.get("Retry-After");
      const title = STATUSES[answer.status] ?? "The connection was refused.";
      const again = wait && (/^\d+$/.test(wait) ? `Try again in ${span(wait * 1000)}.` : `Try again after ${wait}.`);
      showEnded("bad", title, [body.err_msg, again, `HTTP ${answer.status}${body.err_code ? `, ${body.err_code}` : ""}`]);
    } catch {
      showEnded("bad", "The gateway can't be reached.", ["Is it still running? Close code 1006"]);
    }
  }
}

// ---- buttons ----

let current = null;

function setBusy(busy) {
  for (const id of ["start-mic", "start-sample", "key"]) at(id).disabled = busy;
  at("stop").disabled = !busy;
}

function clear() {
  at("hint").hidden = false;
  at("finals").replaceChildren();
  at("partial").textContent = "";
  at("ended").hidden = true;
  at("ended").replaceChildren();
  at("sent").textContent = "0.0 s";
  at("admitted").textContent = "–";
  at("chunks").textContent = at("skipped").textContent = "0";
}

function checkedKey() {
  const key = at("key").value.trim();
  const fault = !key ? "Enter a key first." : KEY_FORM.test(key) && key !== "token" ? "" : "A key has only letters, digits, - _ and .";
  at("key-note").textContent = fault || "Stays in this page's memory; never stored.";
  at("key").setAttribute("aria-invalid", String(Boolean(fault)));
  if (fault) at("key").focus();
  return fault ? null : key;
}

async function startStream(open) {
  const key = checkedKey();
  if (!key || current) return;
  clear();
  setBusy(true);
  let source = null;
  let cancelled = false;
  current = { finish: () => (cancelled = true) };
  showStatus("connecting", "Connecting");
  try {
    source = await open();
    await quota.ask(key);
    if (cancelled) return showStatus("ready", "Ready");
    current = new Stream(key, source);
    at("stop").focus();
    await current.watch();
    await quota.ask(key);
  } catch (fault) {
    showStatus("ended", "Not started");
    showEnded("bad", "The source can't be used.", [fault.message]);
  } finally {
    source?.stop();
    current = null;
    setBusy(false);
  }
}

const finishCurrent = () => current?.finish();

at("start-mic").addEventListener("click", () => startStream(() => openMicrophone(finishCurrent)));
at("start-sample").addEventListener("click", () =>
  startStream(() => openSample(finishCurrent, () => current.mayFeed())),
);
at("stop").addEventListener("click", finishCurrent);
at("aloud").addEventListener("change", () => {
  if (!at("aloud").checked) at("sound").pause();
  else if (current?.source?.position) playAloud(current.source.position());
});
at("key").addEventListener("change", takeKey);

/** Another key: what was known of the old one's quota is gone. */
function takeKey() {
  quota.forget();
  const key = checkedKey();
  if (key) quota.ask(key);
}

/** A key handed over in the fragment, which no server sees, leaves the address bar at once. */
function takeKeyFromFragment() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return;
  history.replaceState(null, "", location.pathname + location.search);
  at("key").value = key;
  takeKey();
}
window.addEventListener("hashchange", takeKeyFromFragment);
takeKeyFromFragment();
