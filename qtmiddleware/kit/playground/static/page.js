"use strict";
// The page works without this script, which draws the lines, lights up a passage in all lists, asks with Enter and copies.

// Each passage's place in the plain list stands beside the row of that number; a line leads to its place in the result.
function draw(list) {
  if (!list.clientHeight) return;
  let svg = list.parentElement.querySelector("svg");
  if (!svg) {
    list.insertAdjacentHTML("beforebegin", '<svg aria-hidden="true"></svg>');
    svg = list.parentElement.querySelector("svg");
  }
  const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
  const frame = svg.getBoundingClientRect();
  const rows = [...list.children];
  const find = (row) => {
    const place = row.querySelector(".place").getBoundingClientRect();
    return [place.left + place.width / 2 - frame.left, place.top + place.height / 2 - frame.top];
  };
  const end = rows.at(-1).getBoundingClientRect().bottom - frame.top;
  const isNew = (row) => row.dataset.way === "new";
  const firsts = rows.filter((row) => !isNew(row));
  const others = rows.filter(isNew).sort((a, b) => (a.dataset.start || 1e9) - (b.dataset.start || 1e9));
  const ways = ["same", "gone", "down", "up", "new"];
  const lines = [];
  let low = end;
  let dots = "";
  for (const row of [...firsts, ...others]) {
    const { p, start, way } = row.dataset;
    const [x, y] = find(row);
    const from = isNew(row) ? (low += 1.65 * rem) - 0.8 * rem : find(rows[start - 1])[1];
    const left = 0.8 * rem;
    const middle = (left + x) / 2;
    const path = `M${left} ${from}C${middle} ${from} ${middle} ${y} ${x} ${y}`;
    lines.push([ways.indexOf(way), `<path class="${way}" data-p="${p}" d="${path}"/>`]);
    dots += `<g class="${way}" data-p="${p}"><circle cx="${left}" cy="${from}" r="${0.7 * rem}"/>`;
    dots += `<text x="${left}" y="${from + 0.26 * rem}">${start || "–"}</text></g>`;
  }
  svg.innerHTML = lines.sort((a, b) => a[0] - b[0]).map((line) => line[1]).join("") + dots;
  svg.style.height = `${low}px`;
  list.style.marginBottom = `${low - end}px`;
}
const watching = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target)));
document.querySelectorAll(".drawn > ol:has(.row)").forEach((list) => watching.observe(list));

function light(event) {
  const key = event.target.closest?.("[data-p]")?.dataset.p;
  document.querySelectorAll("[data-p]").forEach((part) => part.classList.toggle("lit", part.dataset.p === key));
  document.body.classList.toggle("lights", Boolean(key));
}
document.addEventListener("pointerover", light);
document.addEventListener("focusin", light);

const field = document.getElementById("q");
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  field.form.requestSubmit();
});
field.form.addEventListener("submit", () => {
  field.form.querySelector(".main").textContent = "Asking …";
});
window.addEventListener("pageshow", () => {
  field.form.querySelector(".main").textContent = "Ask";
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.(".copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
  button.textContent = "Copied";
});
