// What an element shows as a file: SVG, or PNG where a canvas has drawn it, as pixels have no shapes.

import { bytesOf, cssColour, el, save, say, svg } from "./kit.js";

const PAD = 8; // around a picture
const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "vector-effect", "font-size", "font-family", "font-weight", "text-anchor"];
const CLEAR = "rgba(0, 0, 0, 0)";

const round = (value) => Math.round(value * 100) / 100;

/** An element as it is on the screen as SVG, without controls and what is apart, which style sheets hide meanwhile; canvases are not in it, `canvases` are these with their places. */
export function pictured(root) {
  root.classList.add("whole");
  const frame = root.getBoundingClientRect();
  const [width, height] = [Math.ceil(frame.width + 2 * PAD), Math.ceil(frame.height + 2 * PAD)];
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width, height, fill: cssColour("var(--card)") }));
  const canvases = [];
  add(root, picture, { left: frame.left - PAD, top: frame.top - PAD, canvases });
  root.classList.remove("whole");
  return { text: new XMLSerializer().serializeToString(picture), width, height, canvases };
}

function boxOf(element, view) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return { x: round(left - view.left), y: round(top - view.top), width: round(width), height: round(height) };
}

function add(element, into, view) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return;
  const box = boxOf(element, view);
  if (element instanceof SVGSVGElement) into.append(copied(element, box));
  else if (element instanceof HTMLCanvasElement) view.canvases.push({ element, ...box });
  else {
    into.append(...ground(style, box));
    let inner = into;
    if (style.overflowX === "hidden" && box.width && box.height) {
      inner = svg("svg", { ...box, viewBox: `${box.x} ${box.y} ${box.width} ${box.height}` });
      into.append(inner);
    }
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) inner.append(...lines(child, view));
      else if (child.nodeType === Node.ELEMENT_NODE) add(child, inner, view);
    }
  }
}

/** What lies behind the text of an element: its colour, the colours of a ramp, an image, a frame. */
function ground(style, box) {
  const found = [];
  const rounded = { ...box, rx: parseFloat(style.borderTopLeftRadius) || 0 };
  const image = /^url\("(data:[^"]+)"\)/.exec(style.backgroundImage);
  if (style.backgroundColor !== CLEAR) found.push(svg("rect", { ...rounded, fill: style.backgroundColor }));
  if (style.backgroundImage.startsWith("repeating-linear-gradient")) found.push(...hatched(style.backgroundImage.match(/rgb\([^)]*\)/)[0], rounded));
  if (image) found.push(svg("image", { ...box, href: image[1], preserveAspectRatio: "xMidYMid slice" }));
  if (style.backgroundImage.startsWith("linear-gradient")) {
    const colours = style.backgroundImage.match(/rgb\([^)]*\)/g) || [];
    const wide = box.width / colours.length;
    found.push(...colours.map((fill, i) => svg("rect", { ...box, x: round(box.x + i * wide), width: round(wide + 0.3), fill })));
  }
  const sides = ["Top", "Right", "Bottom", "Left"].map((side) => parseFloat(style[`border${side}Width`]) > 0 && style[`border${side}Color`] !== CLEAR);
  if (sides.every(Boolean)) found.push(svg("rect", { ...rounded, fill: "none", stroke: style.borderTopColor }));
  else if (sides[2]) found.push(svg("line", { x1: box.x, x2: round(box.x + box.width), y1: round(box.y + box.height), y2: round(box.y + box.height), stroke: style.borderBottomColor }));
  return found;
}

/** A box with diagonal lines, as style sheets hatch what is no computation. */
function hatched(stroke, box) {
  const id = `hatch-${box.x}-${box.y}`.replaceAll(".", "_");
  const line = svg("line", { x1: 0, x2: 0, y1: 0, y2: 4, stroke, "stroke-width": 3 });
  return [svg("pattern", { id, width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, line), svg("rect", { ...box, fill: `url(#${id})` })];
}

const ruler = document.createElement("canvas").getContext("2d");

/** A text as one element for each of its lines on the screen. */
function lines(node, view) {
  const found = [];
  const range = document.createRange();
  for (let i = 0; i < node.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const { left, right, top, height } = range.getBoundingClientRect();
    if (right <= left) continue;
    const blank = !node.data[i].trim();
    if (!found.length || Math.abs(found.at(-1).top - top) > 2) {
      if (blank) continue;
      found.push({ text: "", left, top, height });
    }
    found.at(-1).text += node.data[i];
    if (!blank) found.at(-1).right = right;
  }
  const style = getComputedStyle(node.parentElement);
  const font = { "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight };
  ruler.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = ruler.measureText("x");
  return found.map(({ text, left, right, top, height }) => {
    const baseline = top + (height * above) / (above + below);
    const place = { x: round(left - view.left), y: round(baseline - view.top), textLength: round(right - left) };
    return svg("text", { ...place, ...font, fill: style.color }, text.trimEnd());
  });
}

/** A drawing of the page with the styles that it has there. */
function copied(element, box) {
  const copy = element.cloneNode(true);
  const own = [element, ...element.querySelectorAll("*")], others = [copy, ...copy.querySelectorAll("*")];
  own.forEach((one, i) => {
    const style = getComputedStyle(one);
    for (const name of KEPT) others[i].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "aria-describedby"]) others[i].removeAttribute(name);
  });
  for (const [name, value] of Object.entries({ ...box, overflow: getComputedStyle(element).overflowX })) copy.setAttribute(name, value);
  return copy;
}

/** An element as the bytes of a PNG, with as many pixels as on the screen. */
async function pixels(root) {
  const { text, width, height, canvases } = pictured(root);
  const ratio = Math.max(1, devicePixelRatio);
  const whole = el("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  const context = whole.getContext("2d");
  context.scale(ratio, ratio);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  context.drawImage(image, 0, 0);
  for (const { element, x, y, width: wide, height: high } of canvases) if (element.width && element.height) context.drawImage(element, x, y, wide, high);
  return bytesOf(whole.toDataURL("image/png").split(",")[1]); // toBlob waits for seconds until a page is idle
}

/** A button that saves what an element shows as NAME.svg or, with the kind PNG, as NAME.png. */
export function pictureButton(root, name, kind) {
  const file = `${name}.${kind.toLowerCase()}`;
  const keep = async () => {
    try {
      if (kind === "SVG") save(file, pictured(root).text, "image/svg+xml");
      else save(file, await pixels(root), "image/png");
    } catch (error) {
      say(`the picture cannot be saved: ${error.message}`);
    }
  };
  return el("button", { type: "button", class: "quiet tool", "aria-label": `save as ${file}`, title: `save as ${kind}`, onclick: keep }, kind);
}
