"use strict";
// A plot is drawn when it comes near the screen: a hundred at once would keep a phone busy for long.
const coarse = matchMedia("(pointer: coarse)").matches;
const isShown = (view, curve) => view.querySelector(`[data-curve="${curve}"]`).getAttribute("aria-pressed") === "true";

function draw(plot) {
  watcher.unobserve(plot);
  if (plot.data) return;
  const { data, layout } = JSON.parse(plot.nextElementSibling.textContent);
  const view = plot.closest(".view");
  for (const trace of data) trace.visible = isShown(view, trace.legendgroup);
  layout.showlegend = false; // the view's own legend serves all its panels
  if (coarse) layout.dragmode = false; // a finger on a plot scrolls the page
  Plotly.newPlot(plot, data, layout, { displayModeBar: false, responsive: true });
}

function update(view) {
  for (const plot of view.querySelectorAll(".plot")) {
    if (plot.data) Plotly.restyle(plot, { visible: plot.data.map((trace) => isShown(view, trace.legendgroup)) });
  }
}

const watcher = new IntersectionObserver(
  (entries) => { for (const entry of entries) if (entry.isIntersecting) draw(entry.target); },
  { rootMargin: "800px" },
);
const plots = document.querySelectorAll(".view .plot");
for (const plot of plots) watcher.observe(plot);

for (const view of document.querySelectorAll(".view")) {
  const buttons = [...view.querySelectorAll("[data-curve]")];
  const show = (button, yes) => button.setAttribute("aria-pressed", String(yes));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      show(button, button.getAttribute("aria-pressed") !== "true");
      update(view);
    });
    button.addEventListener("dblclick", () => {
      // The two clicks before have left this curve as it was.
      const alone = buttons.every((other) => other === button || other.getAttribute("aria-pressed") === "false");
      for (const other of buttons) show(other, alone || other === button);
      update(view);
    });
  }
}

addEventListener("beforeprint", () => {
  for (const plot of plots) draw(plot);
  for (const part of document.querySelectorAll("details")) part.open = true;
});
