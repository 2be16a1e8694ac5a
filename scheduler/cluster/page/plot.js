// Drawing of curves: [x, y] pairs in, SVG out. Nothing here knows of jobs.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 24;

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Mean of the past with weights w^n, as if it had always been so: TensorBoard's smoothing.
export function smoothed(pairs, weight) {
  if (!weight) return pairs;
  let sum = 0, whole = 1;
  return pairs.map(([x, y]) => {
    if (y === null) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    whole *= weight;
    return [x, sum / (1 - whole)];
  });
}

// About `count` round numbers from low to high.
export function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step);
  return found;
}

// Of a logarithmic axis, in logarithms: powers of ten, and 2 and 5 of each where there are few.
export function logTicks(low, high) {
  const found = [], inner = high - low < 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let n = Math.floor(low); n <= high; n += every) found.push(...inner.map(m => n + Math.log10(m)));
  const inside = found.filter(t => t >= low - 1e-9 && t <= high + 1e-9);
  return inside.length > 1 ? inside : ticks(low, high, 4);
}

function range(values, isFlat) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(low <= high)) return [0, 1];
  const rest = low === high ? isFlat(low) : 0;
  return [low - rest, high + rest];
}

export class Plot {
  // curves: {pairs, shown (smoothed), kind}; a y of null is a gap. isLog: the y axis.
  constructor(node, curves, isLog, words) {
    this.node = node;
    this.width = node.clientWidth;
    this.height = node.clientHeight;
    this.isLog = isLog;
    this.curves = curves.map(curve => ({...curve, points: this.usable(curve.shown), raw: this.usable(curve.pairs)}));
    const all = this.curves.flatMap(curve => [...curve.points, ...curve.raw]).filter(([, y]) => y !== null);
    this.x = range(all.map(([x]) => x), () => .5);
    this.y = range(all.map(([, y]) => y), y => isLog ? .5 : Math.abs(y) / 10 || 1);
    node.setAttribute("viewBox", "0 0 " + this.width + " " + this.height);
    node.replaceChildren(this.grid(words), ...this.curves.flatMap(curve => this.lines(curve)));
    this.cursor = node.appendChild(svg("g"));
  }

  usable(pairs) {
    if (!this.isLog) return pairs;
    return pairs.map(([x, y]) => [x, y > 0 ? Math.log10(y) : null]);
  }

  atX(x) {
    return LEFT + (this.width - LEFT - RIGHT) * (x - this.x[0]) / (this.x[1] - this.x[0]);
  }

  atY(y) {
    return TOP + (this.height - TOP - BOTTOM) * (this.y[1] - y) / (this.y[1] - this.y[0]);
  }

  grid({x: wordX, y: wordY}) {
    const group = svg("g", {class: "grid"}), bottom = this.height - BOTTOM, right = this.width - RIGHT;
    const rows = this.isLog ? logTicks(...this.y) : ticks(...this.y, 5);
    for (const y of rows) {
      const at = this.atY(y), word = wordY(this.isLog ? 10 ** y : y);
      group.append(svg("line", {x1: LEFT, x2: right, y1: at, y2: at}),
        svg("text", {x: LEFT - 6, y: at + 4, "text-anchor": "end"}, word));
    }
    for (const x of ticks(...this.x, Math.max(2, this.width / 110))) {
      const at = this.atX(x);
      group.append(svg("line", {x1: at, x2: at, y1: TOP, y2: bottom}),
        svg("text", {x: at, y: this.height - 7, "text-anchor": at > right - 20 ? "end" : "middle"}, wordX(x)));
    }
    return group;
  }

  lines(curve) {
    const bold = svg("path", {class: curve.kind, d: this.path(curve.points)});
    return curve.shown === curve.pairs ? [bold] : [svg("path", {class: curve.kind + " raw", d: this.path(curve.raw)}), bold];
  }

  path(points) {
    let pen = "M";
    return points.map(([x, y]) => {
      if (y === null) {
        pen = "M";
        return "";
      }
      const part = pen + this.atX(x).toFixed(1) + "," + this.atY(y).toFixed(1);
      pen = "L";
      return part;
    }).join("");
  }

  // The x of a place on the screen.
  under(clientX) {
    const box = this.node.getBoundingClientRect();
    const share = (clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return this.x[0] + Math.min(Math.max(share, 0), 1) * (this.x[1] - this.x[0]);
  }

  // Marks the points that are nearest to x, and returns them, as they were given; null where there is none.
  point(x) {
    this.cursor.replaceChildren();
    if (x === null) return [];
    const found = this.curves.map(curve => {
      const i = nearest(curve.points, x);
      if (i < 0) return null;
      const [px, py] = curve.points[i];
      this.cursor.append(svg("circle", {class: curve.kind, cx: this.atX(px), cy: this.atY(py), r: 3.5}));
      return {x: px, y: curve.shown[i][1], raw: curve.pairs[i][1]};
    });
    const at = this.atX(found.find(Boolean)?.x ?? x);
    this.cursor.prepend(svg("line", {x1: at, x2: at, y1: TOP, y2: this.height - BOTTOM}));
    return found;
  }
}

function nearest(points, x) {
  let best = -1;
  for (const [i, [px, py]] of points.entries()) {
    if (py !== null && (best < 0 || Math.abs(px - x) < Math.abs(points[best][0] - x))) best = i;
  }
  return best;
}
