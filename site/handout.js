// Prints the book's handout to a PDF of two A4 pages.
//
//   node handout.js BOOK HANDOUT.pdf

import { writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./browser.js";

const PAGES = 2;
const [book, to] = process.argv.slice(2).map((path) => resolve(path));

const browser = await launch();
// An A4 page is 210 mm wide; without its margins of 10 mm, it has 190 mm, or 718 pixels of 1/96 inch.
const page = await browser.newPage({ viewport: { width: 718, height: 1000 } });
await page.goto(pathToFileURL(join(book, "facilitator/handout.html")).href);
await page.emulateMedia({ media: "print" });
const wide = await page.evaluate(() =>
  [...document.querySelectorAll(".handout *")]
    .filter((element) => element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline")
    .map((element) => element.textContent.trim().slice(0, 60)),
);
const pdf = await page.pdf({ preferCSSPageSize: true, printBackground: true });
await browser.close();

const problems = wide.map((text) => `wider than the paper: ${text}`);
const pages = pdf.toString("latin1").match(/\/Type\s*\/Page\b/g)?.length ?? 0;
if (pages !== PAGES) {
  problems.push(`it has ${pages} pages, and must have ${PAGES}`);
}
if (problems.length > 0) {
  console.error(problems.map((text) => `error: the handout: ${text}`).join("\n"));
  process.exit(1);
}
await writeFile(to, pdf);
console.log(`wrote ${to}: ${PAGES} pages, nothing is cut off`);
