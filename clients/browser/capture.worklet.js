// Packs the microphone's samples into chunks of 16-bit PCM with their level. Runs on the audio thread;
// never blocks, and holds one chunk at most.

class Capture extends AudioWorkletProcessor {
  constructor(options) {
    super();
    this.size = options.processorOptions.samples;
    this.begin();
  }

  begin() {
    this.chunk = new Int16Array(this.size);
    this.filled = 0;
    this.power = 0;
  }

  process([input]) {
    for (const sample of input[0] ?? []) {
      const bounded = Math.max(-1, Math.min(1, sample));
      this.chunk[this.filled++] = bounded < 0 ? bounded * 0x8000 : bounded * 0x7fff;
      this.power += bounded * bounded;
      if (this.filled === this.size) this.post();
    }
    return true;
  }

  post() {
    const rms = Math.sqrt(this.power / this.size);
    this.port.postMessage({ pcm: this.chunk.buffer, rms }, [this.chunk.buffer]);
    this.begin();
  }
}

registerProcessor("capture", Capture);
