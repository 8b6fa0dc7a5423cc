"use strict";
// Nothing here is needed to read the page: it sorts the table, walks through questions and opens all for printing.
(() => {
  const walked = JSON.parse(document.getElementById("walked").textContent);
  const number = (value, digits) => value.toFixed(digits).replace("-", "\u2212");
  document.documentElement.classList.add("js");

  // The table of all figures: a click on a heading orders it, another turns the order around; unknown stays last.
  const table = document.querySelector("table.all");
  const headings = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    if (column === 0) return row.cells[0].textContent.trim();
    const text = row.cells[column].dataset.number;
    return text === "" || !Number.isFinite(Number(text)) ? null : Number(text);
  };
  const order = (column) => {
    const heading = headings[column];
    const was = heading.getAttribute("aria-sort");
    const turn = column === 0 ? (was === "ascending" ? -1 : 1) : (was === "descending" ? 1 : -1);
    for (const other of headings) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [a, b] = [key(one, column), key(other, column)];
      if (a === null || b === null) return (a === null) - (b === null);
      return turn * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
    table.tBodies[0].append(...rows);
  };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => order(column));
    heading.append(button);
  });

  // The walk through the questions of a system, from the most helped to the most hurt.
  for (const walk of document.querySelectorAll(".walk")) {
    const panel = walk.closest(".panel");
    const gains = walked.gains[Number(walk.dataset.system)];
    const sorted = gains.map((_, place) => place).sort((a, b) => gains[b] - gains[a]);
    const slider = walk.querySelector("input");
    const output = walk.querySelector("output");
    const charts = [...panel.querySelectorAll("svg.wins")];
    const show = () => {
      const rank = Number(slider.value) - 1;
      const place = sorted[rank];
      const before = walked.before[place];
      const gain = gains[place];
      const points = (gain > 0 ? "+" : "") + number(100 * gain, 1);
      const change = `${number(before, 3)} \u2192 ${number(Math.max(0, before + gain), 3)}`;
      output.textContent = `${rank + 1} of ${sorted.length} \u00b7 ${points} points (${change}) \u00b7 ${walked.questions[place]}`;
      slider.setAttribute("aria-valuetext", output.textContent);
      for (const chart of charts) {
        const [left, right] = [Number(chart.dataset.left), Number(chart.dataset.right)];
        const x = left + ((rank + 0.5) / sorted.length) * (right - left);
        const line = chart.querySelector(".walker");
        line.setAttribute("x1", x);
        line.setAttribute("x2", x);
      }
    };
    for (const chart of charts) {
      const follow = (event) => {
        const box = chart.getBoundingClientRect();
        const [left, right] = [Number(chart.dataset.left), Number(chart.dataset.right)];
        const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
        const rank = Math.ceil(((x - left) / (right - left)) * sorted.length);
        slider.value = Math.min(sorted.length, Math.max(1, rank));
        show();
      };
      chart.addEventListener("pointermove", follow);
      chart.addEventListener("pointerdown", follow);
    }
    slider.addEventListener("input", show);
    show();
  }

  // Paper cannot be clicked: what is folded is opened for it, and folded again.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
})();
