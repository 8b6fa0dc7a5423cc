"use strict";
// The page works without this: it says aloud what came, puts each place beside its passage, lights up a passage wherever
// it stands, sends with Enter, copies.
document.addEventListener("keydown", (event) => {
  if (event.target.id !== "q" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

function light(event) {
  const key = event.target.closest?.("[data-p]")?.dataset.p;
  for (const it of document.querySelectorAll(".lit")) if (it.dataset.p !== key) it.classList.remove("lit");
  document.body.classList.toggle("lights", Boolean(key));
  if (key) for (const it of document.querySelectorAll(`[data-p="${key}"]`)) it.classList.add("lit");
}
document.addEventListener("pointerover", light);
document.addEventListener("focusin", light);

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Selected: press Ctrl+C";
  }
});

// Rows are as high as their texts, so the places are drawn evenly at first and moved beside their passages here.
const even = 26;
function arrange(list) {
  const svg = list.parentElement.querySelector(".lines svg");
  if (!svg || !list.clientHeight) return;
  const rows = Number(svg.dataset.rows);
  const scale = Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
  const top = svg.getBoundingClientRect().top;
  // Of a row that is still being sent, the title may not be there yet; when it comes, the list grows.
  const shown = [...list.querySelectorAll(":scope > .row:not(.gone)")].filter((it) => it.querySelector("summary"));
  if (!shown.length) return;
  const centres = shown.map((it) => {
    const line = it.querySelector("summary").getBoundingClientRect();
    return (line.top + Math.min(line.height / 2, 13 * scale) - top) / scale;
  });
  const end = (shown.at(-1).getBoundingClientRect().bottom - top) / scale;
  const move = (y) => {
    const row = Math.round(y / even - 0.5);
    if (y >= rows * even) return end + y - rows * even;
    return centres[row] ?? end - even / 2;
  };
  let lowest = end;
  for (const node of svg.querySelectorAll("circle, text")) {
    const name = node.tagName === "circle" ? "cy" : "y";
    const shift = name === "y" ? 4 : 0;
    node.dataset.y ??= node.getAttribute(name);
    const y = move(Number(node.dataset.y) - shift);
    node.setAttribute(name, y + shift);
    lowest = Math.max(lowest, y + even / 2);
  }
  for (const path of svg.querySelectorAll("path")) {
    path.dataset.d ??= path.getAttribute("d");
    path.setAttribute("d", path.dataset.d.replace(/([\d.]+) ([\d.]+)/g, (_, x, y) => `${x} ${move(Number(y))}`));
  }
  svg.setAttribute("height", `${lowest / 16}rem`);
  svg.setAttribute("viewBox", `0 0 ${svg.viewBox.baseVal.width} ${lowest}`);
}
const watched = new WeakSet();
const watching = new ResizeObserver((entries) => {
  for (const it of entries) arrange(it.target);
});

new MutationObserver(() => {
  const status = document.getElementById("status");
  if (!status) return;
  const came = [...document.querySelectorAll("article[data-tier]")].map((it) => it.dataset.tier);
  const said = document.getElementById("headline")?.textContent ?? (came.length ? `Answered: ${came.join(", ")}.` : "");
  if (status.textContent !== said) status.textContent = said;
  for (const it of document.querySelectorAll("button.copy[hidden]")) it.hidden = false;
  for (const it of document.querySelectorAll(".lines + .rows")) {
    if (watched.has(it)) continue;
    watched.add(it);
    watching.observe(it);
  }
}).observe(document, { childList: true, subtree: true });
