// A headless Chromium, and what is wrong with a page that it shows.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Debian's Chromium, or the one that CHROMIUM names. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** Errors on the console, exceptions, and requests to hosts other than `host`, as they come. */
export function findings(page, host = "") {
  const found = [];
  page.on("console", (message) => message.type() === "error" && found.push(`the console says: ${message.text()}`));
  page.on("pageerror", (error) => found.push(`an exception: ${error.message}`));
  // Whoever leaves a page breaks off what it still loads.
  const isLeft = (request) => request.failure()?.errorText === "net::ERR_ABORTED";
  page.on("requestfailed", (request) => isLeft(request) || found.push(`${request.url()} can't be loaded`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (!["file:", "data:", "blob:"].includes(url.protocol) && url.host !== host) {
      found.push(`${url.href} is asked of another host`);
    }
  });
  return found;
}

/** Violations of WCAG 2.1 A and AA that axe finds. */
export async function violations(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], resultTypes: ["violations"] }),
  );
  return violations.map(({ id, help, nodes }) => `${id}: ${help} (${nodes.length} times): ${nodes[0].html.slice(0, 200)} ${nodes[0].any[0]?.message ?? ""}`);
}
