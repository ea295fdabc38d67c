// Adds what mdBook lacks for readers without a mouse.

// Make content that is wider than the page scrollable by keyboard.
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

// Make the label that shows and hides the table of contents a button.
document.getElementById("mdbook-sidebar-toggle")?.setAttribute("role", "button");
