"use strict";
// Without this script everything is there but the reading below a chart, which stays at its peak,
// and the sorting.
for (const figure of document.querySelectorAll(".gcpass .memory")) {
  const plot = figure.querySelector(".plot");
  const reading = figure.querySelector(".reading");
  const hits = [...figure.querySelectorAll(".hit")];
  const peak = Number(figure.dataset.peak);
  let here = peak;
  const show = (point, mark) => {
    hits[here].classList.remove("here");
    here = Math.min(Math.max(point, 0), hits.length - 1);
    hits[here].classList.toggle("here", mark);
    reading.textContent = hits[here].querySelector("title").textContent;
  };
  for (const type of ["pointermove", "pointerdown"]) {
    plot.addEventListener(type, (event) => {
      const point = hits.indexOf(event.target.closest(".hit"));
      if (point >= 0) show(point, true);
    });
  }
  plot.addEventListener("pointerleave", () => show(peak, false));
  plot.addEventListener("blur", () => show(peak, false));
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: hits.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key], true);
  });
  reading.setAttribute("aria-live", "polite");
}
for (const table of document.querySelectorAll(".gcpass .decisions")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const rising = head.classList.contains("number")
        ? head.ariaSort === "descending"
        : head.ariaSort !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      const order = ([a], [b]) => (typeof a === "number" ? a - b : a.localeCompare(b));
      rows.sort((a, b) => (rising ? order(a, b) : order(b, a)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
