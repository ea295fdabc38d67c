// Checks every slide of every deck in a browser: from a folder and below a sub-path of a server, in light and dark, with and without
// notes, on paper, and for readers in the last row.
//
//   node slides.check.js SLIDES [--shots FOLDER] [--deck NAME]

import { mkdir, readdir, readFile, stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { each, errors, launch, serve, violations } from "./browser.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { shots: { type: "string" }, deck: { type: "string" } },
});
const folder = resolve(positionals[0] ?? "target/slides");
const SCHEMES = ["light", "dark"];
const SCREEN = { width: 1280, height: 720 };
/** The smallest height of letters, in pixels of a slide. */
const SMALLEST = { text: 20, code: 26 };

const problems = [];
const browser = await launch();
const { server, address } = await serve(folder);
const entries = await readdir(folder, { withFileTypes: true });
const withPage = entries.filter((entry) => entry.isDirectory() && !["reveal", "pictures", "recordings"].includes(entry.name));
const chosen = withPage.map((entry) => entry.name).filter((name) => !values.deck || name === values.deck);
const sizes = await Promise.all(chosen.map((name) => stat(join(folder, name, "index.html")).then(({ size }) => [name, size])));
/** The smallest first: on a page with more slides, each one takes longer to check. */
const decks = sizes.sort(([, one], [, other]) => one - other).map(([name]) => name);
const counts = {};
/** Slides that were already checked in another deck: an exercise has the same slides in each. */
const seen = new Set();

/** Opens a page, calls `look` with it, and collects the problems that are found. */
async function open(url, options, look) {
  const context = await browser.newContext({ viewport: SCREEN, ...options });
  const page = await context.newPage();
  const found = errors(page, new URL(url).host);
  await page.goto(url);
  await look(page, found);
  problems.push(...found.map((text) => `${url}: ${text}`));
  await context.close();
}

const ready = (page) => page.waitForFunction(() => globalThis.Reveal?.isReady());

/** Returns what doesn't fit on the current slide, or is too small to read. Runs in the page. */
function misfits({ width, height, smallest, withNotes }) {
  const slide = globalThis.Reveal.getCurrentSlide();
  const found = [];
  const box = slide.getBoundingClientRect();
  const scale = globalThis.Reveal.getScale();
  if (Math.abs(box.width - width * scale) > 1 || Math.abs(box.height - height * scale) > 1) {
    found.push(`it is ${box.width}×${box.height} pixels at a scale of ${scale}`);
  }
  for (const one of [slide, ...slide.querySelectorAll("pre, code, p, table, ul, dl, div, img")]) {
    if (one.closest("aside")) continue;
    const at = one.getBoundingClientRect();
    const isInline = getComputedStyle(one).display === "inline";
    if (!isInline && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1) && one.tagName !== "IMG") {
      found.push(`<${one.localName}> overflows: ${one.scrollWidth}×${one.scrollHeight} in ${one.clientWidth}×${one.clientHeight}`);
    }
    const inside = at.left >= box.left - 1 && at.top >= box.top - 1 && at.right <= box.right + 1 && at.bottom <= box.bottom + 1;
    if (!inside) found.push(`<${one.localName}> “${one.textContent.slice(0, 30)}” reaches out of the slide, to ${Math.round(at.bottom)}`);
    if (one.matches("img.recording")) {
      // The terminal in a recording has letters of 14 pixels; the view box has the recording's own size.
      const size = (14 * at.width) / scale / one.naturalWidth;
      if (size < smallest.code) found.push(`the letters of ${one.src} are ${size.toFixed(1)} pixels high`);
    }
    if (one.localName === "img" && !(one.alt && one.naturalWidth > 0)) found.push(`${one.src} isn't shown, or has no alternative text`);
  }
  const blocks = [...slide.querySelectorAll(":scope > :not(aside, .start), .start > *")];
  const number = document.querySelector(".slide-number").getBoundingClientRect();
  for (const [at, one] of blocks.entries()) {
    for (const other of blocks.slice(at + 1)) {
      const [above, below] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
      if (above.bottom > below.top + 1) found.push(`<${one.localName}> and <${other.localName}> lie on each other`);
    }
    if (one.getBoundingClientRect().bottom > box.bottom - 30 * scale) found.push(`<${one.localName}> leaves no margin at the bottom`);
  }
  const texts = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const shown = text.data.trim().slice(0, 30);
    if (!shown || text.parentElement.closest("aside")) continue;
    const size = parseFloat(getComputedStyle(text.parentElement).fontSize);
    if (size < (text.parentElement.closest("code, pre") ? smallest.code : smallest.text)) found.push(`“${shown}” is ${size} pixels high`);
    const range = document.createRange();
    range.selectNodeContents(text);
    const isCovered = (at) => at.right > number.left && at.bottom > number.top && number.width > 0;
    if ([...range.getClientRects()].some(isCovered)) found.push(`the slide's number covers “${shown}”`);
  }
  if (document.documentElement.scrollWidth > innerWidth || document.documentElement.scrollHeight > innerHeight) found.push("the page scrolls");
  if (withNotes) {
    const notes = document.querySelector("div.speaker-notes");
    if (!/\d:\d\d since the start/.test(notes.textContent)) found.push("its notes have no time");
    if (notes.scrollHeight > notes.clientHeight + 1 || notes.scrollWidth > notes.clientWidth + 1) {
      found.push(`its notes overflow: ${notes.scrollWidth}×${notes.scrollHeight} in ${notes.clientWidth}×${notes.clientHeight}`);
    }
  }
  return [...new Set(found)];
}

/** Returns the labels of the speaker's view that cover a slide. Runs in the view. */
function covered() {
  const slides = [...document.querySelectorAll("iframe")].map((slide) => slide.getBoundingClientRect());
  const labels = [...document.querySelectorAll(".overlay-element")];
  const covers = (label) => {
    const at = label.getBoundingClientRect();
    return slides.some((slide) => at.left < slide.right && at.right > slide.left && at.top < slide.bottom && at.bottom > slide.top);
  };
  const found = labels.filter(covers).map((label) => `“${label.textContent.trim().slice(0, 20)}” covers a slide`);
  return slides.length === 2 ? found : [...found, `it shows ${slides.length} slides`];
}

/** Returns the id and the place of each slide, and its HTML without its notes. */
function slidesOf(page) {
  return page.evaluate(() => {
    const shown = (slide) => [...slide.children].filter((one) => one.localName !== "aside").map((one) => one.outerHTML);
    return Reveal.getSlides().map((slide) => ({ id: slide.id, html: shown(slide).join(""), ...Reveal.getIndices(slide) }));
  });
}

/** Shows these slides in turn, and calls `look` with the id of each. */
async function eachSlide(page, slides, look) {
  for (const { id, h, v } of slides) {
    await page.evaluate(([h, v]) => Reveal.slide(h, v ?? 0), [h, v]);
    await look(id);
  }
}

const fileOf = (deck) => pathToFileURL(join(folder, deck, "index.html")).href;

/**
 * Calls `look` while the page contains only the current slide's column, and its background: axe looks at the whole page for each slide,
 * which takes ten times as long with hundreds of them.
 */
async function alone(page, look) {
  await page.evaluate(() => {
    const slide = globalThis.Reveal.getCurrentSlide();
    const shown = [slide, globalThis.Reveal.getSlideBackground(slide)];
    globalThis.removed = [".slides", ".backgrounds"].map((selector, index) => {
      const parent = document.querySelector(selector);
      const children = [...parent.children];
      parent.replaceChildren(children.find((child) => child.contains(shown[index])));
      return [parent, children];
    });
  });
  const result = await look();
  await page.evaluate(() => globalThis.removed.forEach(([parent, children]) => parent.replaceChildren(...children)));
  return result;
}

/** Checks each slide that no other deck has shown yet. What fits in one color scheme fits in the other. */
async function checkSlides(deck, colorScheme) {
  const isFirst = colorScheme === SCHEMES[0];
  await open(fileOf(deck), { colorScheme }, async (page, found) => {
    await ready(page);
    await page.evaluate(() => Reveal.configure({ fragments: false }));
    found.push(...(await violations(page, { onlyColors: !isFirst })));
    const slides = await slidesOf(page);
    counts[deck] = slides.length;
    const unseen = slides.filter(({ html }) => !seen.has(colorScheme + html));
    for (const { html } of unseen) seen.add(colorScheme + html);
    await eachSlide(page, unseen, async (id) => {
      const wrong = await alone(page, () => violations(page, { part: `[id="${id}"]`, onlyColors: !isFirst }));
      if (isFirst) wrong.push(...(await page.evaluate(misfits, { ...SCREEN, smallest: SMALLEST, withNotes: false })));
      found.push(...wrong.map((text) => `slide ${id}, ${colorScheme}: ${text}`));
      if (values.shots) {
        await mkdir(join(values.shots, deck), { recursive: true });
        await page.screenshot({ path: join(values.shots, deck, `${id}-${colorScheme}.png`) });
      }
    });
  });
}

/** Checks the view with a slide and its notes side by side. */
async function checkNotes(deck, colorScheme) {
  const isFirst = colorScheme === SCHEMES[0];
  await open(`${fileOf(deck)}?showNotes=true`, { colorScheme }, async (page, found) => {
    await ready(page);
    await page.evaluate(() => Reveal.configure({ fragments: false }));
    if (isFirst) {
      await eachSlide(page, await slidesOf(page), async (id) => {
        const wrong = await page.evaluate(misfits, { ...SCREEN, smallest: SMALLEST, withNotes: true });
        found.push(...wrong.map((text) => `slide ${id}, with notes: ${text}`));
      });
    }
    const wrong = await violations(page, { part: ".speaker-notes", onlyColors: !isFirst });
    found.push(...wrong.map((text) => `the notes, ${colorScheme}: ${text}`));
  });
}

/** Checks the key that changes the color scheme, and the speaker's view. */
async function checkSpeaker(deck) {
  await open(fileOf(deck), { colorScheme: "light" }, async (page, found) => {
    await ready(page);
    await page.keyboard.press("t");
    const scheme = await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme);
    if (scheme !== "dark") found.push(`T leaves it ${scheme}`);
    const [speaker] = await Promise.all([page.context().waitForEvent("page"), page.keyboard.press("s")]);
    const shown = speaker.locator(".speaker-controls-notes .value, .speaker-controls-notes");
    await shown.filter({ hasText: "since the start" }).first().waitFor({ timeout: 20_000 }).catch(() => found.push("the speaker's view shows no notes"));
    for (const layout of ["default", "wide", "tall"]) {
      await speaker.locator(".speaker-layout-dropdown").selectOption(layout);
      found.push(...(await speaker.evaluate(covered)).map((text) => `the speaker's view, ${layout}: ${text}`));
      if (values.shots) await speaker.screenshot({ path: join(values.shots, deck, `speaker-${layout}.png`) });
    }
  });
}

/** Checks that a PDF has one page for each slide. */
async function checkPaper(deck) {
  await open(`${fileOf(deck)}?print-pdf`, {}, async (page, found) => {
    await ready(page);
    await page.waitForFunction(() => document.querySelectorAll(".pdf-page").length > 0);
    const pdf = await page.pdf({ preferCSSPageSize: true, printBackground: true });
    const pages = pdf.toString("latin1").match(/\/Type\s*\/Page\b/g)?.length ?? 0;
    if (pages !== counts[deck]) found.push(`${pages} pages for ${counts[deck]} slides`);
  });
}

const inSchemes = (check) => decks.flatMap((deck) => SCHEMES.map((scheme) => () => check(deck, scheme)));
const now = (check) => check();
// The other checks need the numbers of slides.
await each(inSchemes(checkSlides), now);
await each([...inSchemes(checkNotes), ...decks.flatMap((deck) => [() => checkSpeaker(deck), () => checkPaper(deck)])], now);

// Every link must lead to an existing file, and to a slide in it.
for (const name of ["", ...decks]) {
  const url = new URL(`${name ? `${name}/` : ""}index.html`, address).href;
  await open(url, {}, async (page, found) => {
    if (name) await ready(page);
    else found.push(...(await violations(page)));
    const links = await page.evaluate(() => [...document.querySelectorAll("a[href]")].map((link) => link.href));
    for (const link of new Set(links)) {
      const { host, pathname, hash } = new URL(link);
      if (host !== new URL(address).host) continue;
      const file = join(folder, decodeURIComponent(pathname).slice(new URL(address).pathname.length));
      const text = (await stat(file).catch(() => null))?.isFile() ? await readFile(file, "utf8") : null;
      if (text === null) found.push(`${link} leads nowhere`);
      else if (hash && !text.includes(`id="${hash.replace(/^#\/?/, "")}"`)) found.push(`${link}: there is no such slide`);
    }
  });
}

await browser.close();
server.close();
if (problems.length > 0) {
  console.error(problems.join("\n"));
  console.error(`error: ${problems.length} problems in ${decks.length} decks`);
  process.exit(1);
}
const told = decks.map((deck) => `${deck} ${counts[deck]}`).join(", ");
console.log(`slides: ${told}; each fits, with notes and without, in light and dark, and on paper: no error, no request to another host, no violation`);
