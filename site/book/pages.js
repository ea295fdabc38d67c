// What mdBook leaves out for readers without a mouse.

// What is wider than the page is scrolled by keys too.
function makeScrollable() {
    for (const block of document.querySelectorAll("pre code, .table-wrapper")) {
        if (block.scrollWidth > block.clientWidth) {
            block.tabIndex = 0;
        } else {
            block.removeAttribute("tabindex");
        }
    }
}
globalThis.addEventListener("load", makeScrollable);
globalThis.addEventListener("resize", makeScrollable);
document.addEventListener("toggle", makeScrollable, true);

// A label that shows and hides the table of contents is a button.
document.getElementById("mdbook-sidebar-toggle")?.setAttribute("role", "button");
