// Runs a headless Chromium, and finds what is wrong with a page.

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { availableParallelism } from "node:os";
import { extname, resolve, sep } from "node:path";
import { chromium } from "playwright-core";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const PROGRAMS = ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"];

/** Starts Debian's Chromium, preferably as a headless shell, or the program in CHROMIUM. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? PROGRAMS.find(existsSync) ?? PROGRAMS[0],
    args: ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** Calls `look` with each item; as many calls run at the same time as there are cores, since each page has a process of its own. */
export function each(items, look) {
  return shared(items, async (left) => {
    for (const item of left) await look(item);
  });
}

/** Does the same as `each`, and also passes a page. Each worker uses one page for all of its items: a new one would take a fifth longer to load. */
export function eachOnPage(browser, options, items, look) {
  return shared(items, async (left) => {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    for (const item of left) await look(item, page);
    await context.close();
  });
}

/** Lets as many workers as there are cores take items, until none are left. */
async function shared(items, work) {
  const left = items.values();
  await Promise.all(Array.from({ length: availableParallelism() }, () => work(left)));
}

/** Returns a list that collects console errors, exceptions, and requests to hosts other than `host`. */
export function errors(page, host = "") {
  const found = [];
  page.on("console", (message) => message.type() === "error" && found.push(`the console reports: ${message.text()}`));
  page.on("pageerror", (error) => found.push(`an exception: ${error.message}`));
  // Leaving a page aborts the requests that are still in flight.
  const isLeft = (request) => request.failure()?.errorText === "net::ERR_ABORTED";
  page.on("requestfailed", (request) => isLeft(request) || found.push(`${request.url()} can't be loaded`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (!["file:", "data:", "blob:"].includes(url.protocol) && url.host !== host) {
      found.push(`${url.href} is loaded from another host`);
    }
  });
  return found;
}

/** Serves a folder below /some/path/. */
export async function serve(folder) {
  const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2" };
  const server = createServer(async (request, response) => {
    const name = decodeURIComponent(new URL(request.url, "http://localhost").pathname).replace(/^\/some\/path\//, "");
    const file = resolve(folder, name || "index.html");
    const body = file.startsWith(folder + sep) ? await readFile(file).catch(() => null) : null;
    response.writeHead(body ? 200 : 404, { "content-type": types[extname(file)] ?? "application/octet-stream" });
    response.end(body ?? "");
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { server, address: `http://127.0.0.1:${server.address().port}/some/path/` };
}

const LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"];
/** The rules of these levels whose result depends on a page's colors. */
const COLORS = ["color-contrast", "link-in-text-block"];

/**
 * Returns the violations of WCAG 2.1 A and AA that axe finds, in the whole page or in the elements that the selector `part` selects.
 * With `onlyColors`, it looks only for those that depend on colors: enough for a page that was checked in another color scheme.
 */
export async function violations(page, { part, onlyColors = false } = {}) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axe);
  const { violations } = await page.evaluate(
    ([part, runOnly]) =>
      globalThis.axe.run(part ?? document, {
        runOnly,
        resultTypes: ["violations"],
        // With preload, axe would request the style sheets itself, and a browser refuses that for files.
        preload: false,
      }),
    [part, onlyColors ? COLORS : LEVELS],
  );
  return violations.map(({ id, help, nodes }) => `${id}: ${help} (${nodes.length} times): ${nodes[0].html.slice(0, 200)} ${nodes[0].any[0]?.message ?? ""}`);
}
