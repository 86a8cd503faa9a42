// The page works without this: it adds a button that copies, and opens what a link leads to in older browsers.
"use strict";
for (const text of document.querySelectorAll("pre.copied")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
  });
  text.before(button);
}
function reveal() {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (place === null) return;
  for (let around = place.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  place.scrollIntoView();
  if (place.tabIndex === -1) place.focus({ preventScroll: true });
}
addEventListener("hashchange", reveal);
reveal();
