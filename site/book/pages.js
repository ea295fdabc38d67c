// Adds what mdBook lacks for readers without a mouse, or with a small screen.

// Make content that is wider than the page scrollable by keyboard, and show that it scrolls.
function makeScrollable() {
    for (const block of document.querySelectorAll("pre code, .table-wrapper")) {
        if (block.scrollWidth > block.clientWidth) {
            block.tabIndex = 0;
        } else {
            block.removeAttribute("tabindex");
        }
        showMore(block);
        block.onscroll = () => showMore(block);
    }
}

// Let the right edge fade while there is more behind it.
function showMore(block) {
    const hidden = block.scrollWidth - block.clientWidth - block.scrollLeft;
    block.classList.toggle("more-right", hidden > 1);
}
globalThis.addEventListener("load", makeScrollable);
globalThis.addEventListener("resize", makeScrollable);
document.addEventListener("toggle", makeScrollable, true);

// Make the label that shows and hides the table of contents a button.
document.getElementById("mdbook-sidebar-toggle")?.setAttribute("role", "button");
