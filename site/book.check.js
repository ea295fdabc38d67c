// Checks every page of the book in a browser: from a folder and below a sub-path of a server, in light and dark.
//
//   node book.check.js BOOK [--shots FOLDER]

import { mkdir, readdir, readFile } from "node:fs/promises";
import { extname, join, relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { eachOnPage, errors, launch, serve, violations } from "./browser.js";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { shots: { type: "string" } } });
const book = resolve(positionals[0] ?? "target/book");

// These are made for machines, or shown inside other pages.
const NO_PAGES = new Set(["toc.html", "print.html", "404.html"]);
const THEMES = ["light", "navy"];
const EXERCISE = "05_overlap/interleave.html";
// The table of contents is the same on all pages. It is half of what there is on a page, so it is checked on a module's page and
// on an exercise's.
const WHOLE = ["05_overlap.html", EXERCISE];
const SHOTS = ["index.html", "05_overlap.html", EXERCISE, "reports.html", "instructors.html"];

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
  const blocks = [...document.querySelectorAll("pre code, .table-wrapper")];
  const name = (block) => `“${block.textContent.trim().slice(0, 30)}”`;
  const scrolling = blocks.filter((block) => block.scrollWidth > block.clientWidth + 1);
  for (const block of blocks) {
    const scrolls = scrolling.includes(block);
    if (fades(block) !== scrolls) found.push(`${name(block)} ${scrolls ? "scrolls, but its edge doesn't show it" : "fades, but doesn't scroll"}`);
  }
  for (const block of scrolling) block.scrollLeft = block.scrollWidth;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  found.push(...scrolling.filter(fades).map((block) => `${name(block)} fades at its end`));
  for (const block of scrolling) block.scrollLeft = 0;
  return found;
}

const root = resolve(import.meta.dirname, "..");
const withoutMarks = (text) => text.split("\n").filter((line) => !/^\s*\/\/ ANCHOR(_END)?:/.test(line)).join("\n").trim();

/** Clicks each copy button of an exercise's code, and returns the texts that they copy. Runs in the page. */
function copies() {
  const texts = [];
  document.addEventListener("copy", ({ target }) => texts.push(target.value));
  for (const block of document.querySelectorAll("pre:has(> code.language-rust)")) {
    block.closest("details")?.setAttribute("open", "");
    const button = block.querySelector(".clip-button");
    if (getComputedStyle(button).display !== "none") button.click();
  }
  return texts;
}

/** Returns the texts of an exercise's starter and solution, without the book's marks, or those of them that exist. */
async function filesOf(name) {
  const files = ["modules", "solutions"].map((kind) => join(root, kind, name.replace("/", "/src/").replace(".html", ".rs")));
  const texts = await Promise.all(files.map((file) => readFile(file, "utf8").then(withoutMarks, () => null)));
  return texts.filter((text) => text !== null);
}

/** Returns what is wrong with the copies: those of an exercise are the whole starter and the whole solution, which are compiled. */
async function wrongCopies(page, name) {
  const [copied, files] = [await page.evaluate(copies), await filesOf(name)];
  const isRight = copied.length === files.length && copied.every((text, index) => withoutMarks(text) === files[index]);
  return isRight ? [] : [`its copy buttons copy ${copied.length} texts, which are not the starter and the solution`];
}

/** Copies an exercise's starter as a reader does, with the mouse. Returns what is wrong. */
async function wrongCopyByHand(page, name) {
  const blocks = page.locator("pre:has(> code.language-rust)");
  const shown = await blocks.evaluateAll((all) => all.findIndex((one) => getComputedStyle(one.querySelector(".clip-button")).display !== "none"));
  const block = blocks.nth(shown);
  await block.evaluate((block) => block.closest("details")?.setAttribute("open", ""));
  await block.hover({ position: { x: 20, y: 10 } });
  await block.locator(".clip-button").click();
  const copied = withoutMarks(await page.evaluate(() => navigator.clipboard.readText()));
  return copied === (await filesOf(name))[0] ? [] : [`a click on a copy button of ${name} leaves another text on the clipboard`];
}

// On a phone, a table or code that is cut off must show that it scrolls. Then the same page is made wide, which takes half the time of
// loading it again.
const [PHONE, SCREEN] = [{ width: 390, height: 844 }, { width: 1280, height: 900 }];
await eachOnPage(browser, { permissions: ["clipboard-write"] }, names, async (name, page) => {
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
  found.push(...(await wrongCopies(page, name)));
  problems.push(...found.map((text) => `${name}: ${text}`));
  page.removeAllListeners();
});

for (const start of [pathToFileURL(book).href + "/", address]) {
  const page = await browser.newPage({ permissions: ["clipboard-read", "clipboard-write"] });
  const found = errors(page, new URL(start).host);
  for (const name of ["index.html", EXERCISE]) {
    await page.goto(start + name);
  }
  found.push(...(await wrongCopyByHand(page, EXERCISE)));
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

await browser.close();
server.close();
if (problems.length > 0) {
  console.error(problems.join("\n"));
  console.error(`error: ${problems.length} problems on ${names.length} pages`);
  process.exit(1);
}
console.log(`${names.length} pages, in ${THEMES.join(" and ")}: no error, no request to another host, no violation; search works`);
