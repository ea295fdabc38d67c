// Checks every page of the book in a browser: from a folder and below a sub-path of a server, in light and dark.
//
//   node book.check.js BOOK [--shots FOLDER]

import { mkdir, readdir, readFile } from "node:fs/promises";
import { extname, join, relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { eachInBrowser, eachOnPage, errors, launch, serve, violations } from "./browser.js";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { shots: { type: "string" } } });
const book = resolve(positionals[0] ?? "target/book");

// These are made for machines, or shown inside other pages.
const NO_PAGES = new Set(["toc.html", "print.html", "404.html"]);
const THEMES = ["light", "navy"];
// The table of contents is the same on all pages. It is half of what there is on a page, so it is checked on a module's page and
// on an exercise's.
const WHOLE = ["05_overlap.html", "05_overlap/interleave.html"];
const SHOTS = ["index.html", "05_overlap.html", "05_overlap/interleave.html", "reports.html", "instructors.html"];

async function pagesOf(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const names = entries.filter((entry) => entry.isFile() && extname(entry.name) === ".html");
  return names.map((entry) => relative(folder, join(entry.parentPath, entry.name))).filter((name) => !NO_PAGES.has(name)).sort();
}

const problems = [];
const browser = await launch();
const { server, address } = await serve(book);
const names = await pagesOf(book);
problems.push(...WHOLE.filter((name) => !names.includes(name)).map((name) => `the book has no page ${name}`));

/** Chooses a theme as a reader does, with the page's own menu, and waits until its colors are there. Runs in the page. */
async function choose(theme) {
  document.getElementById(`mdbook-theme-${theme}`).click();
  const isLoaded = (link) => link.disabled || link.sheet;
  const giveUp = Date.now() + 10_000;
  while (![...document.querySelectorAll("link[rel=stylesheet]")].every(isLoaded)) {
    if (Date.now() > giveUp) throw new Error(`the style sheets of ${theme} can't be loaded`);
    await new Promise((done) => setTimeout(done, 5));
  }
  // Colors fade in.
  document.getAnimations().forEach((fade) => fade.finish());
}

/** Scrolls each table and each block of code to its end, and returns those that don't show that they scroll. Runs in the page. */
async function scrollsUnseen() {
  const found = document.documentElement.scrollWidth > innerWidth + 1 ? ["the page scrolls sideways"] : [];
  const fades = (block) => getComputedStyle(block).maskImage !== "none";
  for (const block of document.querySelectorAll("pre code, .table-wrapper")) {
    const scrolls = block.scrollWidth > block.clientWidth + 1;
    const name = `“${block.textContent.trim().slice(0, 30)}”`;
    if (fades(block) !== scrolls) found.push(`${name} ${scrolls ? "scrolls, but its edge doesn't show it" : "fades, but doesn't scroll"}`);
    if (!scrolls) continue;
    block.scrollLeft = block.scrollWidth;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    if (fades(block)) found.push(`${name} fades at its end`);
    block.scrollLeft = 0;
  }
  return found;
}

// On a phone, a table or code that is cut off must show that it scrolls. Then the same page is made wide, which takes half the time of
// loading it again.
const [PHONE, SCREEN] = [{ width: 390, height: 844 }, { width: 1280, height: 900 }];
await eachOnPage(browser, {}, names, async (name, page) => {
  const found = errors(page);
  const load = () => page.goto(pathToFileURL(join(book, name)).href);
  await page.setViewportSize(PHONE);
  await load();
  found.push(...(await page.evaluate(scrollsUnseen)).map((text) => `on a phone: ${text}`));
  await page.setViewportSize(SCREEN);
  // On a wide page, the table of contents is open.
  if (WHOLE.includes(name) || values.shots) await load();
  else await page.evaluate(() => document.getElementById("mdbook-sidebar").remove());
  for (const theme of THEMES) {
    await page.evaluate(choose, theme);
    const onlyColors = theme !== THEMES[0];
    found.push(...(await violations(page, { onlyColors })).map((text) => `in ${theme}: ${text}`));
    if (values.shots && SHOTS.includes(name)) {
      await mkdir(values.shots, { recursive: true });
      await page.screenshot({ path: join(values.shots, `${name.replaceAll("/", "-")}-${theme}.png`) });
    }
  }
  problems.push(...found.map((text) => `${name}: ${text}`));
  page.removeAllListeners();
});

for (const start of [pathToFileURL(book).href + "/", address]) {
  const page = await browser.newPage();
  const found = errors(page, new URL(start).host);
  for (const name of ["index.html", "05_overlap/interleave.html"]) {
    await page.goto(start + name);
  }
  await page.keyboard.press("s");
  await page.locator("#mdbook-searchbar").waitFor();
  await page.keyboard.type("bucket");
  const first = page.locator("#mdbook-searchresults a").first();
  await first.waitFor({ timeout: 10_000 }).catch(() => found.push("a search for `bucket` finds nothing"));
  if (found.length === 0) {
    await first.click();
    await page.waitForLoadState();
    if (!/bucket/i.test(await page.locator("main").innerText())) {
      found.push(`a search for \`bucket\` leads to ${page.url()}, which doesn't speak of it`);
    }
  }
  problems.push(...found.map((text) => `${start}: ${text}`));
  await page.close();
}

// A copy button on an exercise's page copies the whole file, which the course's own checks compile.
const root = resolve(import.meta.dirname, "..");
const withoutMarks = (text) => text.split("\n").filter((line) => !/^\s*\/\/ ANCHOR(_END)?:/.test(line)).join("\n").trim();
await eachInBrowser({ permissions: ["clipboard-read", "clipboard-write"] }, names, async (name, page) => {
  if (!(await readFile(join(book, name), "utf8")).includes("language-rust")) return;
  await page.goto(address + name);
  const blocks = page.locator("pre:has(> code.language-rust)");
  for (let index = 0; index < (await blocks.count()); index += 1) {
    await blocks.nth(index).evaluate((block) => block.closest("details")?.setAttribute("open", ""));
    const button = blocks.nth(index).locator(".clip-button");
    if ((await button.evaluate((button) => getComputedStyle(button).display)) === "none") continue;
    await blocks.nth(index).hover({ position: { x: 20, y: 10 } });
    await button.click();
    const copied = withoutMarks(await page.evaluate(() => navigator.clipboard.readText()));
    const files = ["modules", "solutions"].map((kind) => join(root, kind, name.replace("/", "/src/").replace(".html", ".rs")));
    const texts = await Promise.all(files.map((file) => readFile(file, "utf8").then(withoutMarks, () => null)));
    if (!texts.includes(copied)) {
      problems.push(`${name}: what its copy button ${index + 1} copies is neither the starter nor the solution`);
    }
  }
});

await browser.close();
server.close();
if (problems.length > 0) {
  console.error(problems.join("\n"));
  console.error(`error: ${problems.length} problems on ${names.length} pages`);
  process.exit(1);
}
console.log(`${names.length} pages, in ${THEMES.join(" and ")}: no error, no request to another host, no violation; search works`);
