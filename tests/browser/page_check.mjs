// Checks the demo page in a real browser: sample and microphone, words, quota gauge, endings.
//
//   node page_check.mjs BASE_URL KEY [SCREENSHOT.png [POOR_KEY]]
//
// The gateway behind BASE_URL must have a real speech worker, KEY a budget of a minute or more, and
// POOR_KEY one of 3 to 12 seconds: without it, the check of a budget that runs out is left away. The browser is Chromium at $CHROMIUM or /usr/bin/chromium. Prints 'N passed, N failed'; exits 1 if one failed.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [base, key, screenshot, poorKey] = process.argv.slice(2);
if (!base || !key) {
  console.error("usage: node page_check.mjs BASE_URL KEY [SCREENSHOT.png [POOR_KEY]]");
  process.exit(2);
}
const SAMPLE = fileURLToPath(new URL("../../clients/sample/two_cities.wav", import.meta.url));
const SAMPLE_S = 16.5;
const SURE = ["worst of times", "wisdom", "foolishness", "darkness"];
const LAST = "darkness";
const ENDED_MS = 45_000;

const profile = await mkdtemp(join(tmpdir(), "page-check-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  viewport: { width: 1200, height: 760 },
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    `--use-file-for-fake-audio-capture=${SAMPLE}%noloop`,
  ],
});
const page = await browser.newPage();

const complaints = [];
let refusalsExpected = false;
page.on("console", (message) => {
  const from = message.location().url ?? "";
  if (refusalsExpected && /\/v1\/(listen|quota)/.test(`${from} ${message.text()}`)) return;
  if (from.endsWith("/v1/quota") && message.text().includes("404")) return; // an older gateway
  if (["error", "warning"].includes(message.type())) complaints.push(`${message.text()} ${from}`);
});
page.on("pageerror", (fault) => complaints.push(String(fault)));
page.on("request", (request) => {
  if (!request.url().startsWith(base)) complaints.push(`a foreign request: ${request.url()}`);
});

const shot = (suffix) => screenshot.replace(/(\.png)?$/, `${suffix}.png`);
const text = (id) => page.locator(id).innerText();
const quotaShare = async () => Number(await page.locator("#quota").getAttribute("aria-valuenow"));
const secondsIn = async (id) => Number.parseFloat(await text(id));

async function untilEnded() {
  await page.locator("#ended").waitFor({ state: "visible", timeout: ENDED_MS });
  await page.waitForFunction(() => document.querySelector("#stop").disabled);
}

async function assertWords() {
  const said = (await text("#words")).toLowerCase();
  for (const sure of SURE) assert.ok(said.includes(sure), `"${sure}" is missing in: ${said}`);
}

async function assertCleanEnd() {
  const ended = await text("#ended");
  assert.match(ended, /ended cleanly/);
  assert.match(ended, /Close code 1000/);
  assert.equal(await text("#skipped"), "0");
}

const checks = {
  async key_leaves_the_address_bar() {
    await page.goto(`${base}/#key=${key}`);
    await page.waitForFunction(() => document.querySelector("#key").value !== "");
    assert.ok(!page.url().includes(key), "the key is in the address bar");
    assert.equal(await page.locator("#key").inputValue(), key);
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
    assert.equal(kept, '[{},{},""]');
  },

  async page_obeys_its_own_policy() {
    const policy = (await page.request.get(`${base}/`)).headers()["content-security-policy"] ?? "";
    assert.match(policy, /default-src '(none|self)'/);
    assert.doesNotMatch(policy, /unsafe/);
  },

  async every_control_has_a_name() {
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll("button, input, [role=meter]")]
        .filter((it) => !(it.labels?.length || it.textContent.trim() || it.getAttribute("aria-labelledby")))
        .map((it) => it.outerHTML),
    );
    assert.deepEqual(nameless, []);
  },

  async keyboard_starts_the_sample() {
    await page.check("#aloud");
    await page.locator("#start-sample").focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#status").textContent === "Listening");
    assert.ok(await page.locator("#start-sample").isDisabled());
    await page.waitForFunction(() => document.querySelector("#sound").currentTime > 0);
    await page.uncheck("#aloud");
    assert.ok(await page.evaluate(() => document.querySelector("#sound").paused));
  },

  async sample_shows_provisional_words_and_level() {
    await page.waitForFunction(() => document.querySelector("#partial").textContent.length > 5, null, { timeout: 15_000 });
    await page.waitForFunction(() => Number(document.querySelector("#level").getAttribute("aria-valuenow")) > 30);
  },

  async quota_drains_while_words_come() {
    const before = await quotaShare();
    await page.waitForFunction(
      (share) => Number(document.querySelector("#quota").getAttribute("aria-valuenow")) < share,
      before,
      { timeout: 15_000 },
    );
    await page.waitForFunction(() => document.querySelector("#finals").childElementCount >= 3, null, { timeout: 15_000 });
    if (screenshot) await page.screenshot({ path: screenshot });
  },

  async sample_ends_cleanly_with_its_words() {
    await untilEnded();
    await assertWords();
    await assertCleanEnd();
    assert.ok(Math.abs((await secondsIn("#sent")) - SAMPLE_S) < 0.2, await text("#sent"));
    assert.ok(Math.abs((await secondsIn("#admitted")) - SAMPLE_S) < 0.2, await text("#admitted"));
    if (screenshot) await page.screenshot({ path: shot("-ended"), fullPage: true });
  },

  async microphone_ends_cleanly_with_its_words() {
    const before = await quotaShare();
    await page.click("#start-mic");
    await page.waitForFunction(
      (last) => document.querySelector("#finals").textContent.toLowerCase().includes(last),
      LAST,
      { timeout: ENDED_MS },
    );
    await page.click("#stop");
    await untilEnded();
    await assertWords();
    await assertCleanEnd();
    assert.ok((await quotaShare()) < before, "the gauge did not go down");
  },

  async nothing_was_logged_as_an_error() {
    assert.deepEqual(complaints, []);
  },

  async refused_key_is_explained() {
    refusalsExpected = true;
    await page.fill("#key", "no-such-key");
    await page.click("#start-sample");
    await untilEnded();
    assert.match(await text("#ended"), /HTTP 401/);
    assert.match(await text("#status"), /Refused/);
  },

  async empty_budget_is_explained() {
    refusalsExpected = true;
    await page.fill("#key", poorKey);
    await page.click("#start-sample");
    await untilEnded();
    assert.match(await text("#ended"), /budget.*\n[^]*Close code 1008, QUOTA-0000/);
    if (screenshot) await page.screenshot({ path: shot("-spent"), fullPage: true });
    await page.click("#start-sample");
    await untilEnded();
    assert.match(await text("#ended"), /No budget[^]*HTTP 402/);
  },

  async phone_width_has_no_sideways_scroll() {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width: 360, height: 740 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
      if (screenshot) await page.screenshot({ path: shot(`-phone-${colorScheme}`), fullPage: true });
    }
  },
};

if (!poorKey) delete checks.empty_budget_is_explained;
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok    ${name}`);
  } catch (fault) {
    failed += 1;
    console.log(`FAIL  ${name}\n${fault.stack}`);
  }
}
await browser.close();
await rm(profile, { recursive: true, force: true });
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
