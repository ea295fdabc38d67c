// Starts a deck, in light or dark as the browser prefers; T switches.

Reveal.initialize({
  width: 1280,
  height: 720,
  margin: 0,
  center: false,
  hash: true,
  slideNumber: "c/t",
  controls: false,
  transition: "none",
  pdfSeparateFragments: false,
  plugins: [RevealNotes, RevealHighlight],
});

Reveal.addKeyBinding({ keyCode: 84, key: "T", description: "Light or dark" }, () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const root = document.documentElement;
  const now = root.style.colorScheme || (dark ? "dark" : "light");
  root.style.colorScheme = now === "dark" ? "light" : "dark";
});
