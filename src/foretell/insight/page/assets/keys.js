// Arrow keys in a set of buttons of which one is in the tab order (the pattern of a radio group or a grid).
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Calls `move(columns, rows)` for an arrow key, `end(first)` for Home and End; other keys are left alone.
export function onArrows(element, move, end) {
  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (MOVES[event.key]) move(...MOVES[event.key]);
    else if (event.key === "Home" || event.key === "End") end(event.key === "Home");
    else return;
    event.preventDefault();
  });
}
