"use strict";
// The page works without this: it says aloud what came, lights up a passage wherever it stands, sends with Enter, copies.
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

new MutationObserver(() => {
  const status = document.getElementById("status");
  if (!status) return;
  const came = [...document.querySelectorAll("article[data-tier]")].map((it) => it.dataset.tier);
  const said = document.getElementById("headline")?.textContent ?? (came.length ? `Answered: ${came.join(", ")}.` : "");
  if (status.textContent !== said) status.textContent = said;
  for (const it of document.querySelectorAll("button.copy[hidden]")) it.hidden = false;
}).observe(document, { childList: true, subtree: true });
