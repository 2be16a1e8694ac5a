// Elements that stay: a refresh changes the text of those whose text has changed, and nothing else,
// so that focus, selection and scroll are the user's own.

const kept = new WeakMap(); // parent -> key -> child

// Text goes in as text: what users named themselves is never read as HTML.
export function setText(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The children of `parent`, one for each item in their order: made by make(key), filled by
// fill(child, item). Children before their place go to the end until it is their turn: one that
// is in order with the rest is never moved, for moving it would take its focus.
export function keep(parent, items, keyOf, make, fill) {
  const before = kept.get(parent) || new Map(), now = new Map();
  for (const item of items) {
    const key = String(keyOf(item));
    const child = before.get(key) || make(key);
    now.set(key, child);
    fill(child, item);
  }
  for (const [key, child] of before) if (now.get(key) !== child) child.remove();
  kept.set(parent, now);
  let at = parent.firstChild;
  for (const child of now.values()) {
    if (!child.parentNode) parent.insertBefore(child, at);
    else {
      if (isHeld(child)) while (at !== child) at = putLast(at);
      if (at === child) at = child.nextSibling;
      else parent.insertBefore(child, at);
    }
  }
}

function putLast(child) {
  const following = child.nextSibling;
  child.parentNode.append(child);
  return following;
}

function isHeld(child) {
  const selection = document.getSelection();
  return child.contains(document.activeElement) ||
    (!selection.isCollapsed && (child.contains(selection.anchorNode) || child.contains(selection.focusNode)));
}

// A table's rows, whose cells are [text, class] or text.
export function table(body, items, keyOf, cells) {
  keep(body, items, keyOf, () => element("tr"), (row, item) => {
    cells(item).forEach((cell, i) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const td = row.cells[i] || row.insertCell();
      setText(td, text);
      if (td.className !== kind) td.className = kind;
    });
  });
}

// Terms and what they are; empty ones are left out.
export function terms(list, pairs) {
  const told = pairs.filter(([, text]) => text !== "" && text !== null && text !== undefined);
  const parts = told.flatMap(([name, text]) => [["dt", name, name], ["dd", name, text]]);
  keep(list, parts, part => part[0] + part[1], key => element(key.slice(0, 2)),
    (child, part) => setText(child, part[2]));
}
