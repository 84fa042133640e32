// Laws and anchors of what the pages compute, for Node and for browsers. Nothing here draws.

// ---------------------------------------------------------------------------------------------- words of tests

const plain = (value) => {
  if (value instanceof Set) return ["set", ...[...value].map(plain)];
  if (value instanceof Map) return [...value].map(plain);
  if (ArrayBuffer.isView(value)) return Array.from(value, plain);
  if (Array.isArray(value)) return Array.from(value, plain);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : Object.is(value, -0) ? 0 : value === undefined ? "undefined" : value;
};

function equal(found, wanted) {
  const [one, other] = [JSON.stringify(plain(found)), JSON.stringify(plain(wanted))];
  if (one !== other) throw new Error(`expected ${other}, got ${one}`);
}

function near(found, wanted, reach = 1e-9) {
  if (Array.isArray(wanted)) {
    equal(found.length, wanted.length);
    wanted.forEach((one, i) => near(found[i], one, reach));
  } else if (!(Math.abs(found - wanted) <= reach * Math.max(1e-12, Math.abs(wanted)) || Object.is(found, wanted))) throw new Error(`expected ${wanted}, got ${found}`);
}

function refused(action, sentence) {
  let said = "nothing";
  try {
    action();
  } catch (error) {
    said = error.message;
  }
  if (said !== sentence) throw new Error(`expected to be refused with ${sentence}, got ${said}`);
}

/** Numbers from 0 to 1 that are the same in every run (Park and Miller, 1988). */
function drawer(seed) {
  let state = seed;
  return () => (state = (state * 48271) % 2147483647) / 2147483647;
}

const tests = {};

/** What went wrong by test; `load(name)` gives the module of a script. */
export async function failures(load) {
  const names = ["kit", "study-data", "study-rank", "study-axes", "study-matter", "study-table", "study-answers", "study-scatter", "scenario-offline", "scenario-panel", "scenario-tiles", "scenario-views"];
  const modules = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await load(`${name}.js`)])));
  const page = { ...modules.kit, ...modules["study-data"], ...modules["study-rank"], ...modules["study-axes"], ...modules["study-matter"], ...modules["study-table"], ...modules["study-answers"], panel: modules["scenario-panel"], Grid: modules["scenario-offline"].Grid, tiles: modules["scenario-tiles"], views: modules["scenario-views"], scatter: modules["study-scatter"] };
  const found = {};
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test(page);
    } catch (error) {
      found[name] = String(error.message ?? error);
    }
  }
  return found;
}

// ---------------------------------------------------------------------------------------------- numbers and names

tests["numbers have the digits that Python gives them"] = ({ digits, start }) => {
  for (const [value, count, rounded] of start.rounded) near(Number(digits(value, count)), rounded, 1e-12);
  equal([0, null, undefined, NaN, Infinity, -Infinity].map((value) => digits(value)), ["0", "-", "-", "-", "∞", "-∞"]);
  equal([12345, 99999, 99996, 123456, 1e5, 0.00012346, 0.0001, 0.00009999, -12.50, 1.5e-7].map((value) => digits(value)), ["12350", "1e5", "1e5", "1.235e5", "1e5", "0.0001235", "0.0001", "9.999e-5", "-12.5", "1.5e-7"]);
  equal([digits(123456, 6), digits(1234567, 6), digits(0.000099999999), digits(12345, 2), digits(2.5, 1)], ["123456", "1.23457e6", "0.0001", "12000", "3"]);
};

tests["quantities are written as Python writes them"] = ({ show, start }) => {
  for (const [value, unit, told] of start.told) equal([value, unit, show(value, unit)], [value, unit, told]);
  equal([show(null), show(undefined, "s"), show(NaN, "B"), show(0.5), show(2e-3, "s", 2), show(123456, "USD"), show(12, "USD"), show(100, "USD", 2), show(99, "USD", 2)], ["-", "-", "-", "0.5", "2 ms", "123,456 USD", "12 USD", "100 USD", "99 USD"]);
};

tests["a scale is the largest that is no larger than the value"] = ({ scaleOf, start }) => {
  for (const unit of ["W", "B", "s", "flop/s"]) {
    const scales = start.units[unit] || start.prefixes.map(([factor, prefix]) => [factor, prefix + unit]);
    for (const [k, [factor, name]] of scales.entries()) {
      equal(scaleOf(factor, unit), [factor, name]);
      equal(scaleOf(-factor * (1 - 5e-10), unit), [factor, name]);
      equal(scaleOf(factor * (1 - 2e-9), unit), scales[Math.min(k + 1, scales.length - 1)]);
    }
    equal(scaleOf(1e-30, unit), scales[scales.length - 1]);
    equal(scaleOf(0, unit), scales.find(([factor]) => factor === 1));
  }
};

tests["shares and changes"] = ({ grouped, percent, signed, arrowed, bytesOf, csvOf }) => {
  equal([grouped(1234567.6), grouped(0.4), grouped(-0.6)], ["1,234,568", "0", "-1"]);
  equal([percent(0.25), percent(1), percent(0.123456), percent(0.123456, 2)], ["25 %", "100 %", "12.3 %", "12 %"]);
  equal([0.05, -0.123456, 4.9e-6, -4.9e-6, 5e-6, -5e-6, 0, Infinity, NaN].map((change) => signed(change)), ["+5 %", "−12.3 %", "±0 %", "±0 %", "+0.0005 %", "−0.0005 %", "±0 %", "-", "-"]);
  equal([0.05, -0.123456, 1e-6, 5e-6, NaN].map((change) => arrowed(change)), ["▲\u00a0+5\u00a0%", "▼\u00a0−12.3\u00a0%", "±0 %", "▲\u00a0+0.0005\u00a0%", "-"]);
  equal([signed(0.123456, 2), arrowed(0.123456, 2)], ["+12 %", "▲\u00a0+12\u00a0%"]);
  equal(bytesOf("AAEC/w=="), [0, 1, 2, 255]);
  equal(csvOf([["a", 'say "no"', "b,c", "d\ne"], [1.5, null, undefined, NaN], [0, false, "", -2]]), 'a,"say ""no""","b,c","d\ne"\n1.5,,,\n0,false,,-2\n');
};

tests["texts that have room"] = ({ fitting, widthOf }) => {
  const wide = widthOf("a long text");
  near(widthOf("a long text"), wide);
  equal([wide > widthOf("text"), widthOf("text") > 0, fitting(wide, "a long text", "text"), fitting(wide - 0.01, "a long text", "text"), fitting(0, "a long text", "text")], [true, true, "a long text", "text", ""]);
};

tests["names of resources and files"] = ({ start, tiles, views, panel, fitting }) => {
  equal([tiles.named("memory"), tiles.named("memory_bound_compute"), tiles.named("all_to_all_x"), tiles.named("l2"), tiles.SIZED], ["main memory", "memory-bound compute", "all to all x", "L2", 4]);
  equal(views.fileName("What to CHANGE now"), `${start.title}-what-to-change-now`);
  const element = { textContent: "a" };
  tiles.write(element, "b");
  equal(element.textContent, "b");
};

// ---------------------------------------------------------------------------------------------- colours

tests["a resource has its colour by any of its names"] = ({ resourceColour, isHatched, painted, coloursOf, seriesColour, start, panel }) => {
  for (const [name, colour] of Object.entries(start.colours)) equal([resourceColour(name), resourceColour(name.toUpperCase().replaceAll(" ", "_"))], [colour, colour]);
  for (const [name, resource] of Object.entries(start.same)) equal(resourceColour(name.replaceAll(" ", "_")), start.colours[resource]);
  equal([resourceColour("a name"), isHatched("a name")], [undefined, false]);
  for (const name of start.hatched) equal([isHatched(name.replaceAll(" ", "_")), painted(name, "#123456").backgroundImage.startsWith("repeating-linear-gradient(135deg, transparent 0 2.5px, var(--card) 2.5px 4px")], [true, true]);
  equal(painted("compute", "#123456"), { backgroundColor: "#123456", backgroundImage: "none" });
  const count = start.series.length;
  start.series.forEach((colour, i) => equal([seriesColour(i), seriesColour(i + count)], Array(2).fill(colour === "#000000" ? "var(--ink)" : colour)));
  const names = ["one", "compute", "two", "network", "three"], found = coloursOf(names);
  equal([found[1], found[3], new Set(found).size], [start.colours.compute, start.colours.network, 5]);
  const free = start.series.filter((colour) => ![start.colours.compute, start.colours.network].includes(colour));
  equal(coloursOf([...names, ..."abcdefghijklmnop"]).filter((_, i) => i !== 1 && i !== 3).map((colour) => (colour === "var(--ink)" ? "#000000" : colour)), Array.from({ length: 19 }, (_, i) => free[i % free.length]));
  const parts = panel.componentColours(["compute", "link_a", "on_chip_network", "other thing", "link b", "link c", "link d"]);
  equal(parts.slice(0, 3).concat(parts.slice(4)), [start.colours.compute, start.colours.network, start.colours.network, "#0a7c8c", "#7fd1e8", start.colours.network]);
  equal(parts[3], coloursOf(["other thing"])[0]);
};

tests["tints go from the first to the last through the middle"] = ({ tintsOf, start }) => {
  equal([tintsOf(1), tintsOf(3), tintsOf(0)], [[start.tints[1]], start.tints, []].map((list) => list.map((colour) => colour.toLowerCase())));
  const whole = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const [first, second, third, fourth] = tintsOf(4).map(whole), [low, middle, high] = start.tints.map(whole);
  equal([first, fourth], [low, high]);
  equal(second, low.map((part, k) => Math.round((part + 2 * middle[k]) / 3)));
  equal(third, middle.map((part, k) => Math.round((2 * part + high[k]) / 3)));
  const kept = start.tints;
  start.tints = ["#000000", "#080808", "#ffffff"];
  equal([tintsOf(3), tintsOf(5)], [["#000000", "#080808", "#ffffff"], ["#000000", "#040404", "#080808", "#848484", "#ffffff"]]);
  start.tints = kept;
};

tests["ink is black on light colours and white on dark ones"] = ({ panel, packed, onGround }) => {
  // 0.2126 R + 0.7152 G + 0.0722 B of linear light, gamma 2.2: grey of 148 has 0.302, of 147 0.2975
  equal(["#ffffff", "#000000", "#949494", "#939393", "#00ff00", "#ff0000", "#0000ff", "red"].map(panel.inkOn), ["#101418", "#ffffff", "#101418", "#ffffff", "#101418", "#ffffff", "#ffffff", "var(--ink)"]);
  // red of 255 and green of 125: 0.2126 + 0.7152 x 0.2084 = 0.3616; red of 255 and blue: 0.2848; with green of 80: 0.2848 + 0.0559 = 0.3407
  equal(["#ff7d00", "#ff00ff", "#ff50ff", "#ff3cff"].map(panel.inkOn), ["#101418", "#ffffff", "#101418", "#101418"]);
  equal([packed("#010203"), packed("#123"), packed("#ffffff", 0), packed("#ff8000", 128)], [0xff030201, 0xff332211, 0x00ffffff, 0x800080ff]);
  equal([onGround("#000000"), onGround("#abcdef")], ["#000000", "#abcdef"]);
};

// ---------------------------------------------------------------------------------------------- columns

const base64 = (array) => btoa(Array.from(new Uint8Array(array.buffer), (byte) => String.fromCharCode(byte)).join(""));

/** Put rows into the page: columns by name, each `[values, more]`. Values are numbers, or names. */
function put({ begin, data, start }, columns, more = {}) {
  Object.assign(start, { rows: 0, columns: [], late: [], searches: [], swept: [], objectives: [], tables: {}, draws: 0, offline: false }, more);
  for (const [name, [values, told = {}]] of Object.entries(columns)) {
    start.rows = values.length;
    const names = values.some((value) => typeof value === "string");
    const levels = [...new Set(names ? values : [])];
    const sent = names ? { levels, codes: base64(Uint8Array.from(values, (value) => levels.indexOf(value))), width: 1 } : { numbers: base64(Float64Array.from(values)) };
    start.columns.push({ name, words: name, unit: "1", role: "figure", shown: false, larger: false, ...sent, ...told });
  }
  data.columns.clear();
  data.late.clear();
  begin();
}

const YES = ["yes", "no"];
const tell = (name, more = {}) => ({ name, words: name, unit: "1", role: "setting", shown: false, larger: false, ...more });

tests["a column keeps what it is given"] = (page) => {
  const { Column, digits } = page;
  const column = new Column(tell("a.b.c", { unit: "s", order: ["x"] }));
  equal([column.levels, column.known.get("x"), column.size, column.amounts], [["x"], 0, 0, null]);
  const numbers = new Column(tell("n", { unit: "s" }));
  numbers.append({ numbers: base64(Float64Array.from([3, NaN, -1, 0, 5])) }, 5);
  equal(numbers.stats, { low: -1, high: 5, positive: 3, missing: 1, constant: false });
  equal([numbers.isText, numbers.isConstant, numbers.text(0), numbers.text(1), numbers.text(99), numbers.stats === numbers.stats], [false, false, "3 s", "-", "-", true]);
  numbers.append(undefined, 2);
  numbers.append({ numbers: base64(Float64Array.from([0.5])) }, 1);
  equal([numbers.size, numbers.values.subarray(0, 8), numbers.stats.positive, numbers.stats.missing, numbers.values.length], [8, [3, NaN, -1, 0, 5, NaN, NaN, 0.5], 0.5, 3, 14]);
  const few = new Column(tell("f"));
  few.append({ constant: 4 }, 1);
  equal([few.isConstant, few.stats.low, few.values.length], [false, 4, 1]);
  few.append({ constant: 4 }, 2);
  equal([few.isConstant, few.values.length], [true, 6]);
  few.append(undefined, 1);
  equal(few.isConstant, false);
  const none = new Column(tell("none"));
  none.append(undefined, 3);
  equal([none.isConstant, none.stats.low, none.stats.high, none.stats.positive], [true, Infinity, -Infinity, Infinity]);
  const names = new Column(tell("names"));
  names.append({ levels: ["p", true, false, null, 7], codes: base64(Uint16Array.from([0, 1, 2, 3, 4, 1])), width: 2 }, 6);
  equal([names.levels, names.values.subarray(0, 6), names.text(1), names.text(3), names.written(0)], [["p", "yes", "no"], [0, 1, 2, NaN, 7, 1], "yes", "-", "p"]);
  const wide = new Column(tell("wide"));
  wide.append({ levels: ["p", "q"], codes: base64(Uint32Array.from([1, 0])), width: 4 }, 2);
  equal([wide.text(0), wide.text(1), wide.size, wide.code("q"), wide.code("r")], ["q", "p", 2, 0, 2].with?.(3, wide.known.get("q")) ?? ["q", "p", 2, wide.known.get("q"), 2]);
  const amounts = new Column(tell("power", { amounts: { "1 kW": 1000, zero: 0 }, unit: "W" }));
  equal([amounts.number("1 kW"), amounts.number("zero"), amounts.number("nothing"), amounts.number(3), amounts.number(null)], [1000, 0, NaN, 3, NaN]);
};

tests["names and units of columns"] = ({ Column }) => {
  const short = (words, role) => new Column({ ...tell("x", { role }), words }).short;
  equal([short("a.b.c.d", "setting"), short("a.b", "setting"), short("technology.logic", "setting"), short("a", "setting"), short("a.b.c", "figure"), short("technology.x.logic", "setting")], ["c.d", "a.b", "logic", "a", "a.b.c", "x.logic"]);
  const titled = (unit, ...values) => {
    const column = new Column(tell("x", { unit }));
    column.append({ numbers: base64(Float64Array.from(values)) }, values.length);
    return column.titled();
  };
  equal(titled("1", 3, 4), { title: "x", factor: 1 });
  equal(titled("s", 2e-3, 5e-3), { title: "x [ms]", factor: 1e-3 });
  equal(titled("s", 1e-6, 1), { title: "x [ms]", factor: 1e-3 }); // over more than a factor of 30 the geometric mean, 1 ms
  equal(titled("s", 0.1, 3), { title: "x [s]", factor: 1 }); // exactly 30
  equal(titled("s", 0.9, 2), { title: "x [s]", factor: 1 });
  equal(titled("s", 0.1, 3.01), { title: "x [ms]", factor: 1e-3 }); // mean 0.549 s
  equal(titled("s", -5e-3, 2e-6), { title: "x [ms]", factor: 1e-3 });
  equal(titled("s", 0, 0, NaN).factor, 1);
  equal([titled("USD", 1e5, 1e5), titled("USD", 9e4, 9.9e4).factor], [{ title: "x [million USD]", factor: 1e6 }, 1]);
  const names = new Column(tell("x", { unit: "s", order: ["p"] }));
  equal(names.titled(), { title: "x", factor: 1 });
};

tests["rows come and are selected"] = (page) => {
  const { data, column, select, extend, feasible, allColumns } = page;
  put(page, { a: [[1, 2, 3, NaN]], b: [["p", "q", "p", "r"]], feasible: [["yes", "no", "yes", "yes"]] }, { late: [tell("c")] });
  equal([data.rows, data.selected, data.mask, allColumns().map(({ name }) => name), column("none")], [4, 4, [1, 1, 1, 1], ["a", "b", "feasible", "c"], undefined]);
  equal([0, 1, 2, 3].map(feasible()), [true, false, true, true]);
  const masked = (brushes, only = false) => {
    const version = data.version;
    select(brushes, only);
    equal([data.version, data.selected], [version + 1, data.mask.reduce((sum, one) => sum + one, 0)]);
    return [...data.mask].join("");
  };
  equal([masked({}), masked({}, true), masked({ a: [1, 2] }), masked({ a: [2, Infinity] }), masked({ a: [-Infinity, 1.5] }, true), masked({ b: new Set(["p", "none"]) }), masked({ b: new Set() }), masked({ none: [5, 6] })], ["1111", "1011", "1100", "0110", "1000", "1010", "0000", "1111"]);
  equal(masked({ b: new Set(["p"]), a: [3, 3] }), "0010");
  const version = data.version;
  equal(extend({ rows: 2, columns: { a: { numbers: base64(Float64Array.from([7, 8])) }, feasible: { constant: "no" } } }), 2);
  equal([data.rows, data.mask, data.version, column("a").values.subarray(0, 6), column("b").text(5), column("feasible").text(4)], [6, [1, 1, 1, 1, 1, 1], version + 1, [1, 2, 3, NaN, 7, 8], "-", "no"]);
  equal(masked({ b: new Set(["p", "q", "r"]) }), "111100");
  put(page, { a: [[1, 2]] });
  equal([0, 1].map(feasible()), [true, true]);
  put(page, { a: [[1, 2]], feasible: [["no", "no"]] });
  equal([0, 1].map(feasible()), [false, false]);
};

tests["columns that come late"] = async (page) => {
  const c = { numbers: base64(Float64Array.from([5, 6])) }, d = { constant: "p" };
  put(page, { a: [[1, 2]] }, { late: [tell("c", { unit: "s" }), tell("d")], offline: true, answers: { columns: { c, d } } });
  equal([page.data.late.size, page.column("c")], [2, undefined]);
  await page.need(["a", "c", "none"]);
  equal([[...page.data.late.keys()], page.column("c").text(1), page.allColumns().map(({ name }) => name)], [["d"], "6 s", ["a", "c", "d"]]);
  page.start.answers.columns.c = d;
  await page.need(["c", "d"]);
  equal([page.column("c").text(0), page.column("d").text(0), page.data.late.size], ["5 s", "p", 0]);
};

// ---------------------------------------------------------------------------------------------- fronts, order, quantiles

/** Some rows of three figures with ties, a few of which do not fit or lack a figure. */
function drawn(page, seed, rows = 60) {
  const draw = drawer(seed), whole = (n) => Math.floor(n * draw());
  const columns = Object.fromEntries(["x", "y", "z"].map((name) => [name, [Array.from({ length: rows }, () => (whole(20) ? whole(12) - 3 : NaN))]]));
  put(page, { ...columns, feasible: [Array.from({ length: rows }, () => YES[Number(whole(5) === 0)])], name: [Array.from({ length: rows }, () => ["b10", "b9", "a", "C"][whole(4)])] });
  return Object.fromEntries(["x", "y", "z", "feasible", "name"].map((name) => [name, page.column(name)]));
}

/** Rows that fit, have all goals, and that no other row beats, each compared with each. */
function naive(columns, signs, rows, fits) {
  const held = Array.from({ length: rows }, (_, i) => i).filter((i) => fits(i) && columns.every((one) => Number.isFinite(one.values[i])));
  const no_worse = (a, b) => columns.every((one, k) => signs[k] * one.values[a] <= signs[k] * one.values[b]);
  const better = (a, b) => no_worse(a, b) && columns.some((one, k) => signs[k] * one.values[a] < signs[k] * one.values[b]);
  const alike = (a, b) => columns.every((one) => one.values[a] === one.values[b]);
  return held.filter((i) => !held.some((j) => better(j, i) || (j < i && alike(j, i))));
}

tests["fronts are what no row beats"] = (page) => {
  for (let seed = 1; seed <= 12; seed++) {
    const { x, y, z } = drawn(page, 77 * seed, seed < 7 ? 12 : 90), fits = page.feasible();
    for (const [lx, ly] of [[false, false], [true, false], [false, true], [true, true]]) {
      const found = page.front(x, y, [lx, ly]), signs = [lx, ly].map((more) => (more ? -1 : 1));
      equal([...found].sort((a, b) => a - b), naive([x, y], signs, page.data.rows, fits));
      equal(found, [...found].sort((a, b) => x.values[a] - x.values[b]));
      for (const lz of [false, true]) {
        const all = page.frontOfAll([{ name: "x", larger: lx }, { name: "y", larger: ly }, { name: "z", larger: lz }]);
        equal(all.sort((a, b) => a - b), naive([x, y, z], [...signs, lz ? -1 : 1], page.data.rows, fits));
      }
    }
  }
  const draw = drawer(5), n = 400; // a wide front, whose members change places
  put(page, Object.fromEntries(["x", "y", "z"].map((name) => [name, [Array.from({ length: n }, draw)]])));
  equal(page.frontOfAll(["x", "y", "z"].map((name) => ({ name }))).sort((a, b) => a - b), naive(["x", "y", "z"].map(page.column), [1, 1, 1], n, () => true));
  const state = { x: "x", y: "y" };
  equal(page.scatter.frontOfAxes(state, [true, false]), page.front(page.column("x"), page.column("y"), [true, false]));
};

tests["orders are those of comparisons, what does not fit last"] = (page) => {
  for (let seed = 1; seed <= 6; seed++) {
    const columns = drawn(page, 31 * seed), fits = page.feasible(), alphabet = ["a", "b9", "b10", "C"];
    for (const name of ["x", "name"]) {
      for (const descending of [false, true]) {
        const value = (i) => (name === "x" ? columns.x.values[i] : alphabet.indexOf(columns.name.text(i))) * (descending ? -1 : 1);
        const compared = (a, b) => fits(b) - fits(a) || Number.isNaN(value(a)) - Number.isNaN(value(b)) || (Number.isNaN(value(a)) ? 0 : value(a) - value(b)) || a - b;
        equal(page.ordered(name, descending), Array.from({ length: page.data.rows }, (_, i) => i).sort(compared));
      }
    }
    equal(page.ordered("none", false), Array.from({ length: page.data.rows }, (_, i) => i).sort((a, b) => fits(b) - fits(a) || a - b));
  }
  const values = [1e300, -1e-300, 0, -0, 5e-324, -Infinity, Infinity, 1.0000000000000002, 1, NaN, -2.5, 65536, 65535.5, 4294967296.5, -4294967297];
  put(page, { x: [values] });
  const places = (descending) => Array.from(page.ordered("x", descending), (i) => values[i]);
  equal(places(false), [-Infinity, -4294967297, -2.5, -1e-300, 0, 0, 5e-324, 1, 1.0000000000000002, 65535.5, 65536, 4294967296.5, 1e300, Infinity, NaN]);
  equal(places(true), [...places(false).slice(0, -1).reverse(), NaN]);
  equal(page.ordered("x", false).subarray(4, 6), [2, 3]);
};

tests["the best rows"] = (page) => {
  for (let seed = 1; seed <= 8; seed++) {
    const { x } = drawn(page, 19 * seed), fits = page.feasible();
    page.select({ y: [-2, 6] }, false);
    for (const larger of [false, true]) {
      const sign = larger ? -1 : 1, objective = { name: "x", larger };
      for (const selected of [false, true]) {
        const held = Array.from({ length: page.data.rows }, (_, i) => i).filter((i) => fits(i) && !Number.isNaN(x.values[i]) && (!selected || page.data.mask[i]));
        equal(page.bestRow(objective, selected), held.reduce((best, i) => (best < 0 || sign * x.values[i] < sign * x.values[best] ? i : best), -1));
      }
      const order = [...page.ranking(objective)].filter((i) => page.data.mask[i] && !Number.isNaN(x.values[i]));
      equal(page.ranking(objective), page.ordered("x", larger));
      const key = (i) => x.values[i] + 100 * fits(i);
      const firsts = order.filter((i, k) => order.findIndex((j) => key(j) === key(i)) === k).slice(0, 4);
      const fitting = order.filter(fits), first = x.values[firsts[0]];
      const found = page.bestRows(objective, key, 4, 0.5);
      equal([found.rows, found.fitting], [firsts, fitting.length]);
      equal(found.equal, fitting.filter((i) => x.values[i] === first).length);
      near(found.edge, sign * first + Math.abs(first) / 2);
      equal(found.near, fitting.filter((i) => sign * x.values[i] <= found.edge).length - 1);
      equal(page.bestRows(objective, key, 4).near, 0);
    }
  }
  put(page, { x: [[3, 1, 2]] });
  page.select({ x: [2, 9] }, false);
  equal([page.bestRow({ name: "x" }), page.bestRow({ name: "x" }, true), page.bestRows({ name: "x" }, (i) => i, 9).rows], [1, 2, [2, 0]]);
  put(page, { x: [[1, 1 + 5e-10, 1 + 2e-9, 2]] });
  equal(page.bestRows({ name: "x" }, (i) => i, 2).equal, 2);
  put(page, { x: [[NaN, 3]], feasible: [["no", "no"]], t: [["p", "q"]] });
  equal([page.bestRow({ name: "x" }), page.bestRow({ name: "t" }), page.bestRow({ name: "none" }), page.bestRow(null)], [-1, -1, -1, -1]);
  equal(page.bestRows({ name: "x" }, (i) => i, 5), { rows: [1], fitting: 0, equal: 0, near: 0, edge: NaN });
};

tests["searches converge"] = (page) => {
  put(page, { run: [[0, 1, 0, 0, 1, 0]], evaluations: [[4, 2, 3, 1, 5, 2]], x: [[5, 9, 3, 1, 9, 3]], feasible: [["yes", "yes", "yes", "no", "yes", "yes"]] }, { searches: [{ run: 0, words: "by gradient" }] });
  equal(page.convergence({ name: "x" }), [{ run: 0, words: "by gradient", points: [[4, 5, 0], [7, 3, 2]], total: 10, least: 3 }, { run: 1, words: "search 1", points: [[2, 9, 1]], total: 7, least: 9 }]);
  equal(page.convergence({ name: "x", larger: true }).map(({ points, least }) => [points, least]), [[[[4, 5, 0]], -5], [[[2, 9, 1]], -9]]);
  equal([page.convergence(null), page.convergence({ name: "none" })], [[], []]);
  put(page, { run: [[0, 0]], x: [[5, 4]] });
  equal(page.convergence({ name: "x" }).map(({ points, total, words }) => [points, total, words]), [[[[1, 5, 0], [2, 4, 1]], 2, "search 0"]]); // each point is one
};

tests["quantiles and groups"] = (page) => {
  const { quantile, groupsOf, column } = page;
  equal([0, 0.5, 1, 0.25, 0.1].map((share) => quantile([1, 2, 4, 8, 16], share)), [1, 4, 16, 2, 1.4]);
  put(page, { x: [[10, 9, 100, 2, NaN, 3, 7]], by: [["a", "a", "a", "b", "a", "c", "b"]], and: [["u", "u", "u", "u", "u", "v", "u"]], feasible: [["yes", "yes", "yes", "yes", "yes", "no", "yes"]] });
  equal(groupsOf(column("x"), [column("by"), column("and")], 9), [{ name: "a, u", values: [9, 10, 100], misfits: 1 }, { name: "b, u", values: [2, 7], misfits: 0 }, { name: "c, v", values: [], misfits: 1 }]);
  equal(groupsOf(column("x"), [column("by")], 2).map(({ name }) => name), ["a", "b"]);
  page.select({ by: new Set(["b"]) }, false);
  equal(groupsOf(column("x"), [], 1), [{ name: "all selected points", values: [2, 7], misfits: 0 }]);
};

tests["what people write as a filter"] = (page) => {
  const { brushOf, column } = page;
  put(page, { t: [[0.002, 0.005], { unit: "s" }], b: [[1e9, 2e9], { unit: "B" }], n: [[3, 4]], w: [["Ring", "tree", "Torus"]].map((values) => values) });
  const of = (name, text) => brushOf(column(name), text);
  equal([of("t", ""), of("t", "  "), of("t", "< 3"), of("t", "<= 3 s"), of("t", ">=4 us"), of("t", "> .5 ms")], [null, null, [-Infinity, 0.003], [-Infinity, 3], [4e-6, Infinity], [0.0005, Infinity]]);
  equal([of("t", "2 .. 4"), of("t", "2 .. 4 s"), of("t", "2 us..1e-3 s"), of("t", "1 .. 2e0 s")], [[0.002, 0.004], [2, 4], [2e-6, 1e-3], [1, 2]]);
  near(of("n", "= 4"), [4 * (1 - 5e-4), 4 * (1 + 5e-4)]);
  near(of("n", "-4"), [-4 * (1 + 5e-4), -4 * (1 - 5e-4)]);
  equal([of("n", "0"), of("n", "<50%"), of("n", "+3e1 .. 4E1")], [[0, 0], [-Infinity, 0.5], [30, 40]]);
  equal([of("t", "< 3 MS"), of("t", "<3 S")], [[-Infinity, 0.003], [-Infinity, 3]]);
  equal([of("b", "< 1 GiB"), of("b", "< 1 GB"), of("b", "< 1 gb")], [[-Infinity, 2 ** 30], [-Infinity, 1e9], [-Infinity, 1e9]]);
  equal([of("w", "t"), of("w", "RING | tor"), of("w", "|"), of("w", "none")], [new Set(["tree", "Torus"]), new Set(["Ring", "Torus"]), new Set(), new Set()]);
  refused(() => of("t", "fast"), "expected a number, such as < 20 or 3 .. 5, got fast");
  refused(() => of("t", "3 kg"), "expected a unit of s, got kg");
  refused(() => of("t", "3 %"), "expected a unit of s, got %");
};

tests["tables as CSV"] = (page) => {
  put(page, { p: [[100, 200], { unit: "W", role: "setting" }], f: [[1.5, NaN], { unit: "s" }], t: [["a", "b"], { role: "setting", unit: "s" }], k: [[7, 7]], id: [[3, 3]], n: [[1, 2], { role: "setting" }] });
  const columns = ["p", "f", "t", "n"].map(page.column);
  equal(page.csv(columns, [1, 0]), "p [W],f,t,n\n200,,b,2\n100,1.5,a,1\n");
  equal(page.csv([columns[0], columns[0]], [0]), "p [W]\n100\n");
  equal(page.constants(), ["k 7"]);
  equal([page.scatter.line(page.column("f"), 0), page.scatter.line(page.column("t"), 1), page.scatter.line(page.column("k"), 0), page.scatter.share(1, 3), page.scatter.share(0, 0)], ["f: 1.5 s", "t: b", "k: 7", "33.3", "0"]);
};

// ---------------------------------------------------------------------------------------------- settings

tests["settings that differ, and the figure that ranks"] = (page) => {
  const setting = { role: "setting" };
  const columns = { a: [[1, 2], setting], "techlib.b": [[1, 2], setting], c: [["p", "q"], setting], d: [[5, 5], setting], x: [[1, 2], { larger: true }] };
  const names = () => page.varied().map(({ name }) => name);
  put(page, columns, { swept: ["a", "d"] });
  equal(names(), ["a"]);
  put(page, columns, { swept: ["a"], searches: [1] });
  equal(names(), ["a", "c"]);
  put(page, columns, { searches: [1], swept: ["techlib.b"], tables: { intervals: [1] } });
  equal(names(), ["techlib.b"]);
  put(page, columns);
  equal(names(), ["c", "a"]);
  const by = (name) => page.ranked({ state: { by: name } });
  put(page, columns, { objectives: [{ name: "a", larger: true }] });
  equal([by("a"), by("x"), by("c"), by("none")], [{ name: "a", larger: true }, { name: "x", larger: true }, null, null]);
  put(page, columns, { objectives: [{ name: "x", larger: false }] });
  equal(by("x"), { name: "x", larger: false });
};

/** A full grid of settings a (3 values), b (4) and c (2 names), with a figure of each. */
function grid(page, figure, draws = 0, more = {}) {
  const rows = [];
  for (let a = 0; a < 3; a++) for (let b = 0; b < 4; b++) for (let c = 0; c < 2; c++) for (let d = 0; d < Math.max(1, draws); d++) rows.push([a + 1, 10 * (b + 1), "uv"[c], d]);
  const each = (k) => rows.map((row) => row[k]);
  put(page, { id: [rows.map((_, i) => i)], a: [each(0)], b: [each(1)], c: [each(2)], e: [rows.map(() => 6)], x: [rows.map(([a, b, c, d]) => figure(a, b, c === "v" ? 1 : 0, d))], ...more }, { draws });
  return ["a", "b", "c", "e"].map(page.column);
}

tests["effects of a sweep are ratios between rows that are alike"] = (page) => {
  // x = a^2 exp(b/100) 3^c: the factor of a is 9, of b exp(0.3), of c 3, whatever the others are
  const columns = grid(page, (a, b, c) => a ** 2 * Math.exp(b / 100) * 3 ** c);
  const { way, rows, axes } = page.matters(page.column("x"), columns, false);
  equal([way, rows, axes.map(({ column, groups, covered }) => [column.name, groups, covered])], ["pairs", 24, [["a", 8, 24], ["c", 12, 24], ["b", 6, 24], ["e", 0, "undefined"]]]);
  near(axes.slice(0, 3).flatMap(({ factor, least, most, size }) => [factor, least, most, Math.exp(size)]), [9, 3, Math.exp(0.3)].flatMap((one) => [one, one, one, one]));
  equal(axes.map(({ best, worst, positive, only, size }) => [best, worst, positive, only ?? size > 0]), [[1, 3, true, true], [0, 1, true, true], [10, 40, true, true], [undefined, undefined, undefined, 6]]);
  equal(page.matters(page.column("x"), columns, true).axes.map(({ best, worst }) => [best, worst]), [[3, 1], [1, 0], [40, 10], [undefined, undefined]]);
  // x = a + 10 b c - 500, some below zero: differences; of b 0 (six groups, three of them 300, median of 0 0 0 300 300 300 is 150)
  const others = grid(page, (a, b, c) => a + 10 * b * c - 500);
  const sums = page.matters(page.column("x"), others, false).axes;
  equal(sums.map(({ column, factor, least, most, size, positive }) => [column.name, factor, least, most, size, positive]), [["c", 250, 100, 400, 250, false], ["b", 150, 0, 300, 150, false], ["a", 2, 2, 2, 2, false], ["e", undefined, undefined, undefined, 0, undefined]]);
};

tests["rows are compared in the same draw"] = (page) => {
  const columns = grid(page, (a, b, c, d) => a * (1 + 1000 * d), 3);
  const { way, axes } = page.matters(page.column("x"), columns, false, 3);
  equal([way, axes.map(({ column }) => column.name)[0], axes[0].groups], ["pairs", "a", 24]);
  near([axes[0].factor, axes[0].least, axes[0].most, axes[1].size], [3, 3, 3, 0]);
  const mixed = page.matters(page.column("x"), columns, false, 0).axes.find(({ column }) => column.name === "a");
  if (!(mixed.factor > 1000)) throw new Error(`draws of other points were not mixed: ${mixed.factor}`);
};

tests["where most rows stand alone an axis has its share of the spread"] = (page) => {
  const draw = drawer(3), n = 40;
  const a = Array.from({ length: n }, (_, i) => i % 2), b = Array.from({ length: n }, draw);
  const x = a.map((one, i) => Math.exp(one + 0.1 * b[i]));
  put(page, { id: [a.map((_, i) => i)], a: [a], b: [b], x: [x] });
  const { way, rows, of, axes } = page.matters(page.column("x"), ["b", "a"].map(page.column), false);
  equal([way, rows, of, axes.map(({ column, binned }) => [column.name, binned])], ["share", n, n, [["a", false], ["b", true]]]);
  // adjusted R squared by hand: 1 - (1 - SSB / SST) (n - 1) / (n - k)
  const share = (codes, values) => {
    const mean = values.reduce((s, v) => s + v, 0) / n, groups = [...new Set(codes)];
    const inside = groups.map((code) => values.filter((_, i) => codes[i] === code)).map((mine) => mine.reduce((s, v) => s + (v - mine.reduce((t, u) => t + u, 0) / mine.length) ** 2, 0));
    const spread = values.reduce((s, v) => s + (v - mean) ** 2, 0);
    return Math.max(0, 1 - (inside.reduce((s, v) => s + v, 0) / spread) * ((n - 1) / (n - groups.length)));
  };
  const logs = x.map(Math.log), order = [...b].sort((one, other) => one - other);
  near(axes[0].share, share(a, logs));
  near(axes[1].share, share(b.map((one) => Math.floor((order.indexOf(one) * 10) / n)), logs));
  equal([axes[0].best, axes[0].worst, axes[0].size === axes[0].share], [0, 1, true]);
  // values of b that stand for a tenth: the middle one of its four rows
  const tenth = (k) => { const mine = order.slice(4 * k, 4 * k + 4).map((one) => logs[b.indexOf(one)]); return mine.reduce((s, v) => s + v, 0) / 4; };
  const means = Array.from({ length: 10 }, (_, k) => tenth(k));
  near([axes[1].best, axes[1].worst], [order[4 * means.indexOf(Math.min(...means)) + 2], order[4 * means.indexOf(Math.max(...means)) + 2]]);
  equal(page.matters(page.column("x"), ["b", "a"].map(page.column), true).axes[0].best, 1);
  const quick = page.quickly(page.column("x"), ["a", "b"].map(page.column), n);
  near(quick.map(({ share: one }) => one), axes.map(({ share: one }) => one));
  put(page, { id: [[0, 1, 2, 3]], a: [[5, 5, 5, 5]], b: [[1, 2, 3, 4]], x: [[-1, 2, 3, 4]] });
  equal(page.quickly(page.column("x"), ["b", "a"].map(page.column), 9).map(({ share: one, only }) => [one, only]), [[0, undefined], [0, 5]]);
  put(page, { id: [[0, 1, 2, 3]], a: [[1, 1, 2, 2]], x: [[-1, -1, 1, 1]] });
  near(page.quickly(page.column("x"), [page.column("a")], 9)[0].share, 1);
};

tests["medians, ranges and groups of unlike sizes"] = (page) => {
  // differences of a at each b: 1, 2, 4, 100; rows of b alone in its group at a = 9; the order of rows does not matter
  const rows = [[9, 1, 50], [2, 10, 1], [1, 10, 0], [1, 20, 0], [2, 20, 2], [1, 30, 0], [2, 30, 4], [1, 40, -200], [2, 40, -100]];
  const each = (k) => rows.map((row) => row[k]);
  put(page, { id: [rows.map((_, i) => i)], a: [each(0)], b: [each(1)], x: [each(2)] });
  const axis = page.matters(page.column("x"), [page.column("a")], false).axes[0];
  equal([axis.groups, axis.covered], [1, 9]);
  const { axes } = page.matters(page.column("x"), ["a", "b"].map(page.column), false);
  const a = axes.find(({ column }) => column.name === "a"), b = axes.find(({ column }) => column.name === "b");
  equal([a.covered, a.groups, a.size, a.least, a.most, a.best, a.worst], [8, 4, 3, 1, 100, 1, 2]);
  // of b: at a = 1 from -200 to 0, at a = 2 from -100 to 4
  equal([b.covered, b.groups, b.size, b.least, b.most, b.best], [8, 2, 152, 104, 200, 40]);
  put(page, { id: [[0, 1]], a: [[1, 2]], x: [[3, 6]] });
  equal([page.matters(page.column("x"), [page.column("a")], false).way, page.matters(page.column("x"), [page.column("a")], false).axes[0].groups], ["pairs", 1]);
  page.select({ a: [2, 2] }, false);
  equal(page.matters(page.column("x"), [page.column("a")], false).axes[0].only, 6 / 3);
  put(page, { id: [rows.slice(0, 4).map((_, i) => i)], a: [[1, 2, 1, 3]], b: [[1, 1, 2, 3]], x: [[1, 2, 3, 4]] });
  equal(page.matters(page.column("x"), ["a", "b"].map(page.column), false).way, "pairs"); // two of four rows have a neighbour each way
  put(page, { id: [[0, 1, 2, 3, 4]], a: [[1, 2, 1, 3, 4]], b: [[1, 1, 2, 3, 4]], x: [[1, 2, 3, 4, 5]] });
  equal(page.matters(page.column("x"), ["a", "b"].map(page.column), false).way, "share"); // two of five
  equal(page.matters(page.column("x"), [], false), { way: "share", rows: 5, of: 5, axes: [] });
};

tests["a value is compared with others beside it, not with rows elsewhere"] = (page) => {
  // at b = 1 only two values of a, at b = 2 three: in the mean of the differences the first is best and the third worst
  put(page, { id: [[0, 1, 2, 3, 4]], a: [[1, 2, 1, 2, 3]], b: [[1, 1, 2, 2, 2]], x: [[-10, -9, 110, 111, 112]] });
  const of = (larger) => page.matters(page.column("x"), ["a", "b"].map(page.column), larger).axes.find(({ column }) => column.name === "a");
  equal([of(false).best, of(false).worst, of(true).best, of(true).worst, of(false).size, of(false).covered], [1, 3, 3, 1, 1.5, 5]);
};

tests["names that are missing are values of their own"] = (page) => {
  put(page, { id: [[0, 1, 2, 3]], x: [[1, 2, 4, 8]], b: [[1, 2, 1, 2]] });
  const told = { name: "a", words: "a", unit: "1", role: "setting", levels: ["p", null], codes: base64(Uint8Array.from([0, 0, 1, 1])), width: 1 };
  put(page, { id: [[0, 1, 2, 3]], x: [[1, 2, 4, 8]], b: [[1, 2, 1, 2]], a: [["p", "p", "q", "q"], told] });
  const a = page.matters(page.column("x"), ["a", "b"].map(page.column), false).axes[0];
  equal([a.column.name, a.groups, a.best, a.worst], ["a", 2, 0, NaN]);
  near(a.factor, 4);
};

tests["more combinations than have places of their own"] = (page) => {
  // rows (p, 0) and (0, q), each with both values of r: 2100 x 2100 combinations of p and q, which x does not tell from each other
  const p = [], q = [], r = [];
  for (let k = 0; k < 4199; k++) for (const one of [0, 1]) { p.push(k < 2100 ? k : 0); q.push(k < 2100 ? 0 : k - 2099); r.push(one); }
  put(page, { id: [p.map((_, i) => i)], p: [p], q: [q], r: [r], x: [p.map((one, i) => 1 + (one + q[i]) * (1 + r[i]))] });
  const { way, axes } = page.matters(page.column("x"), ["p", "q", "r"].map(page.column), false);
  const found = axes.find(({ column }) => column.name === "r");
  equal([way, found.groups, found.covered, found.best, found.worst], ["pairs", 4199, 8398, 0, 1]);
  near([found.least, found.most], [1, (1 + 2 * 2099 + 2) / (1 + 2099 + 1)].map((one, k) => (k ? (1 + 2 * 2099) / 2100 : one)), 0.002);
};

tests["columns of ten values are not put in tenths, nor more than 20,000 rows looked at"] = (page) => {
  const n = 40001, ten = (i) => (i % 2 ? 9 : i % 9), b = Array.from({ length: n }, (_, i) => ten(i));
  put(page, { id: [b.map((_, i) => i)], b: [b], c: [b.map((_, i) => (i * 7919) % 11)], d: [b.map((_, i) => i)], x: [b.map((one, i) => one + i / n)] });
  const { way, rows, of, axes } = page.matters(page.column("x"), ["b", "c", "d"].map(page.column), false);
  equal([way, rows, of, Object.fromEntries(axes.map(({ column, binned }) => [column.name, binned]))], ["share", 20001, 40001, { b: false, d: true, c: true }]);
  equal([axes.find(({ column }) => column.name === "b").best, page.quickly(page.column("x"), [page.column("b")], 100).length], [0, 1]);
};

tests["the first draw may be missing"] = (page) => {
  const columns = grid(page, (a, b, c, d) => a * (1 + 1000 * d), 3);
  page.select({ id: [1, Infinity] }, false); // the first row has draw 1
  const { axes } = page.matters(page.column("x"), columns, false, 3);
  equal([axes[0].column.name, axes[0].groups], ["a", 24]);
  near([axes[0].least, axes[0].most], [1.5, 3]);
};

tests["rows that are looked at"] = (page) => {
  put(page, { x: [[1, 2, NaN, 4, 5, 6, 7, 8, 9]], feasible: [["yes", "no", "yes", "yes", "yes", "yes", "yes", "yes", "yes"]] });
  page.select({ x: [1, 8] }, false);
  const x = page.column("x");
  equal([page.usable(x), page.usable(x, 4), page.usable(x, 3), page.usable(x, 100)], [[0, 3, 4, 5, 6, 7], [0, 4, 6], [0, 3, 6], [0, 3, 4, 5, 6, 7]]);
};

// ---------------------------------------------------------------------------------------------- axes

tests["ticks are round numbers within the ends"] = ({ ticks }) => {
  equal([ticks(0, 10, 5), ticks(0, 1, 4), ticks(-3, 3, 3), ticks(5, 5, 4), ticks(7, 2, 4), ticks(0.2, 0.9, 7).length], [[0, 2, 4, 6, 8, 10], [0, 0.5, 1], [-2, 0, 2], [5], [7], 8]);
  equal([ticks(0, 100, 0), ticks(1, 99, 10)], [[0, 100], [10, 20, 30, 40, 50, 60, 70, 80, 90]]);
  const draw = drawer(9);
  for (let i = 0; i < 200; i++) {
    const low = (draw() - 0.5) * 10 ** (8 * draw() - 4), high = low + draw() * 10 ** (8 * draw() - 4), count = 2 + Math.floor(8 * draw());
    const found = ticks(low, high, count), step = found.length > 1 ? found[1] - found[0] : 0;
    if (found.length > count + 1 || found.some((one) => one < low - 1e-6 * step || one > high + 1e-6 * step)) throw new Error(`${low} to ${high}, ${count}: ${found}`);
    if (step && ![1, 2, 5].some((m) => Math.abs(Math.log10(step / m) - Math.round(Math.log10(step / m))) < 1e-6)) throw new Error(`step ${step}`);
    if (step && (low - (found[0] - step) < -1e-9 * step || found[found.length - 1] + step < high * (1 - 1e-12))) throw new Error(`${low} to ${high} lacks ticks: ${found}`);
    if (step && (high - low) / step < (count - 1) / 2.5) throw new Error(`few ticks: ${found}`);
  }
};

tests["scales go there and back"] = (page) => {
  put(page, { x: [[1, 1000], { unit: "s" }], l: [[0.002, 0.004], { unit: "s" }], t: [["p", "q", "r", "s"]], e: [[5, 5]], z: [[0, 0]], m: [[-4, 4]], w: [[1, 50]], v: [[1, 51]], n: [[NaN, NaN]] });
  const scale = (name, ...more) => page.scaleOfColumn(page.column(name), ...more);
  for (const [name, log] of [["x", true], ["x", false], ["l", false], ["m", true], ["e", true], ["e", false], ["z", false]]) {
    const found = scale(name, 100, 20, { log });
    for (const pixel of [20, 47, 100]) near(found.at(found.value(pixel)), pixel);
    for (const tick of found.ticks) if (tick.at < 20 - 1e-9 || tick.at > 100 + 1e-9) throw new Error(`a tick outside: ${tick.at}`);
  }
  // a margin of 3 % of the range on each side
  near([scale("l", 0, 106).at(0.002), scale("l", 0, 106).at(0.004)], [3, 103]);
  near(scale("x", 0, 106, { log: true }).at(10 ** 1.5), 53);
  equal(scale("l", 0, 106).ticks.map(({ text }) => text), ["2", "2.5", "3", "3.5", "4"]);
  equal([scale("l", 0, 106, { count: 3 }).ticks.map(({ text }) => text), scale("l", 0, 106).title], [["2", "3", "4"], "l [ms]"]);
  near(scale("l", 0, 106, { count: 3 }).ticks.map(({ at }) => at), [3, 53, 103]);
  equal([scale("x", 0, 106, { log: true }).ticks.map(({ text }) => text), scale("x", 0, 1, { log: true }).log, scale("m", 0, 1, { log: true }).log, scale("l", 0, 1).log], [["1", "10", "100", "1000"], true, false, false]);
  equal([scale("x", 0, 1).step, scale("l", 0, 106, { range: [0.001, 0.002] }).at(0.002)], [0, 103]);
  // one value: 5 % of it on each side, a tenth on a logarithmic axis; around zero 5 %, of no value 0 to 1
  near([scale("e", 0, 106).at(4.75), scale("e", 0, 106).at(5.25), scale("z", 0, 106).at(-0.05), scale("z", 0, 106).at(0.05), scale("n", 0, 106).at(0), scale("n", 0, 106).at(1)], [3, 103, 3, 103, 3, 103]);
  near([scale("e", 0, 106, { log: true }).at(5 / 1.1), scale("e", 0, 106, { log: true }).at(5.5)], [3, 103]);
  const names = scale("t", 0, 80);
  equal([names.ticks, names.step, names.value(10), names.value(70), names.log, names.title], [["p", "q", "r", "s"].map((text, i) => ({ at: 10 + 20 * i, text })), 20, 0, 3, false, "t"]);
  equal([scale("t", 0, 80, { count: 1 }).ticks.map(({ text }) => text), scale("t", 80, 0).step], [["p", "r"], 20]);
  equal(["x", "t", "e", "z", "m", "w"].map((name) => page.canLog(page.column(name))), [true, false, false, false, false, true]);
  equal(["x", "w", "v", "m"].map((name) => page.wantsLog(page.column(name))), [true, false, true, false]);
};

tests["logarithmic ticks are ones, twos and fives"] = (page) => {
  const texts = (low, high, count) => {
    put(page, { x: [[low, high]] });
    const pad = (high / low) ** (0.03 / 1.06); // within the margin
    return page.scaleOfColumn(page.column("x"), 0, 1, { log: true, count, range: [low * pad, high / pad] }).ticks.map(({ text }) => Number(text));
  };
  equal([texts(1, 100, 6), texts(1, 100, 4), texts(0.9, 1100, 6), texts(0.9, 1.1e6, 3)], [[1, 2, 5, 10, 20, 50, 100], [1, 10, 100], [1, 10, 100, 1000], [100, 1e5]]);
  equal(texts(1.0005, 999.5, 6), [1, 10, 100, 1000]); // a tick may be a thousandth beyond the end
  equal(texts(1.5, 12, 5), page.ticks(1.5, 12, 5)); // of less than 1.2 decades
  equal([texts(0.99, 1.01e8, 4), texts(0.99, 1.01e8, 5)], [[100, 1e5, 1e8], [10, 1e3, 1e5, 1e7]]);
  equal([texts(2, 200, 6), texts(30, 3000, 5)], [[2, 5, 10, 20, 50, 100, 200], [50, 100, 200, 500, 1000, 2000]]);
};

tests["brushes between pixels"] = (page) => {
  put(page, { x: [[0, 10]], t: [["p", "q", "r"]] });
  const x = page.scaleOfColumn(page.column("x"), 0, 106), t = page.scaleOfColumn(page.column("t"), 0, 90);
  near(page.brushBetween(page.column("x"), x, 53, 13), [1, 5]);
  equal([page.brushBetween(page.column("t"), t, 10, 50), page.brushBetween(page.column("t"), t, 50, 10), page.brushBetween(page.column("t"), t, 28, 31)], [new Set(["p", "q"]), new Set(["p", "q"]), null]);
  equal([page.brushBetween(page.column("t"), t, 25, 35), page.brushBetween(page.column("t"), t, 26, 34)], [new Set(["p", "q"]), null]);
  equal([-9, 0, 0.4, 0.6, 2, 9].map((value) => page.levelAt(page.column("t"), value)), ["p", "p", "p", "q", "r", "r"]);
};

tests["colours of rows"] = (page) => {
  put(page, { x: [[0, 50, 100, NaN, 1.5]], l: [[1, 10, 100, 1000, 1]], t: [["p", "q", "compute", "p", "r"]], k: [[3, 3, 3, 3, 3]], many: [Array.from({ length: 5 }, (_, i) => `n${i}`)] });
  const of = (name, log) => { const found = page.colouring(page.column(name), log); return [found, [0, 1, 2, 3, 4].map(found.of)]; };
  const [numbers, places] = of("x", false);
  equal([places, numbers.ramp, numbers.legend, numbers.colours.length, numbers.colours[0], numbers.colours[63]], [[0, 31, 63, 0, 0], [0, 100], [], 64, "#123570", "#d9c84a"]);
  // 9 of 63 steps are one of seven between eight colours of the ramp; the fifth is 5/9 of the way between the first two
  equal([numbers.colours[9], numbers.colours[27], numbers.colours[5]], ["#3b496c", "#707173", "#29406e"]);
  equal(of("l", true)[1], [0, 21, 42, 63, 0]);
  const [names, codes] = of("t", false);
  equal([codes, names.legend.map(({ text, level }) => [text, level]), names.left, names.ramp], [[0, 1, 2, 0, 3], [["p", "p"], ["q", "q"], ["compute", "compute"], ["r", "r"]], 0, null]);
  equal(names.legend.map(({ colour }) => colour), names.colours);
  equal([names.colours[2], new Set(names.colours).size], [page.start.colours.compute, 4]);
  const constant = of("k", false);
  equal([constant[1], constant[0].colours, page.colouring(undefined).colours], [[0, 0, 0, 0, 0], [page.start.series[0]], [page.start.series[0]]]);
  page.extend({ rows: 1, columns: {} }); // a row without a name has the colour of the first
  equal([page.colouring(page.column("t")).of(5), page.colouring(page.column("x")).of(5)], [0, 0]);
  put(page, { t: [Array.from({ length: 15 }, (_, i) => `n${i}`)], l: [Array.from({ length: 15 }, (_, i) => i + 1)] });
  const many = page.colouring(page.column("t"));
  equal([many.legend.length, many.left, many.colours.length], [12, 3, 15]);
  put(page, { t: [Array.from({ length: 12 }, (_, i) => `n${i}`)], l: [Array.from({ length: 12 }, (_, i) => 10 ** i)] });
  equal([page.colouring(page.column("t")).legend.length, page.colouring(page.column("t")).left], [12, 0]);
  equal([page.scatter.coloursFor("l", true).of(6), page.scatter.coloursFor("l", false).of(6), page.scatter.coloursFor("none", true).of(0)], [Math.trunc((63.999 * 6) / 11), 0, 0]);
};

// ---------------------------------------------------------------------------------------------- a scenario

tests["controls, their places and values"] = ({ panel }) => {
  const { same, place, shown } = panel;
  equal([same(1, 1 + 5e-10), same(1, 1 + 2e-9), same(-100, -100 - 5e-8), same(0, 0), same(0, 1e-12), same("1", 1), same("a", "a"), same(5e9, 5e9 + 1), same(1e-12, 2e-12)], [true, false, true, true, false, false, true, true, false]);
  const linear = { least: 2, most: 6 }, logs = { least: 1, most: 1000, log: true };
  near([2, 3, 6, 7, 1].map((value) => place(linear, value)), [0, 0.25, 1, 1, 0]);
  near([1, 10, 100, 1e6, 0.1].map((value) => place(logs, value)), [0, 1 / 3, 2 / 3, 1, 0]);
  equal([shown({ kind: "whole" }, 4096), shown({ kind: "number", unit: "W" }, 4096), shown({ kind: "name" }, "ring"), shown({ kind: "whole" }, true)], ["4,096", "4.096 kW", "ring", "true"]);
};

tests["rectangles of a treemap"] = ({ views }) => {
  // Bruls, Huizing and van Wijk (2000), Fig. 4: areas 6, 6, 4, 3, 2, 2, 1 in 6 by 4
  const found = views.treemap([6, 6, 4, 3, 2, 2, 1], 0, 0, 6, 4);
  const wanted = [[0, 0, 3, 2], [0, 2, 3, 2], [3, 0, 12 / 7, 7 / 3], [33 / 7, 0, 9 / 7, 7 / 3], [3, 7 / 3, 6 / 5, 5 / 3]];
  near(found.slice(0, 5).flatMap(({ x, y, width, height }) => [x, y, width, height]), wanted.flat(), 1e-9);
  const draw = drawer(4);
  for (let i = 0; i < 40; i++) {
    const values = Array.from({ length: 1 + Math.floor(9 * draw()) }, draw).sort((a, b) => b - a), total = values.reduce((s, v) => s + v, 0);
    if (i % 4 === 0) values.push(0);
    const [x, y, width, height] = [10 * draw(), 10 * draw(), 1 + 9 * draw(), 1 + 9 * draw()];
    const rectangles = views.treemap(values, x, y, width, height);
    equal(rectangles.map((one) => one.i), values.map((_, k) => k).filter((k) => values[k] > 0));
    for (const one of rectangles) {
      near(one.width * one.height, (values[one.i] / total) * width * height, 1e-6);
      if (one.x < x - 1e-9 || one.y < y - 1e-9 || one.x + one.width > x + width + 1e-9 || one.y + one.height > y + height + 1e-9) throw new Error("outside of the frame");
    }
    for (const [k, one] of rectangles.entries()) for (const other of rectangles.slice(k + 1)) {
      const over = (from, size) => Math.min(one[from] + one[size], other[from] + other[size]) - Math.max(one[from], other[from]);
      if (over("x", "width") > 1e-9 && over("y", "height") > 1e-9) throw new Error("rectangles lie on each other");
    }
  }
  equal(views.treemap([], 0, 0, 1, 1), []);
};

/** A grid of two strategies, three numbers and two names; the last design of the first strategy is missing. */
function designs() {
  const axes = [
    { path: "strategy", kind: "strategy", values: [0, 1], own: 0 },
    { path: "power", kind: "number", values: [100, 200, 400], own: 1 },
    { path: "node", kind: "name", values: ["N7", "N5"], own: 0 },
  ];
  const points = [];
  for (let s = 0; s < 2; s++) for (let p = 0; p < 3; p++) for (let n = 0; n < 2; n++) {
    const capacity = 100, memory = s ? { weights: 50 } : { weights: 60, activations: p === 0 ? 36 : 35 };
    points.push(s === 0 && p === 2 && n === 1 ? null : { strategy: s ? "D2" : "T2", step_time: 10 / (p + 1) + s - 0.1 * n, feasible: !(s && p === 1), memory, capacity, bound: { network: s, compute: 0.5 } });
  }
  return { axes, points, missing: { 1: "no such node" } };
}

tests["designs of a grid"] = ({ Grid }) => {
  const grid = new Grid(designs(), undefined);
  equal([grid.strategy, grid.sizes, grid.axis("power").own, grid.axis("none"), grid.values("power"), grid.values("strategy"), grid.values("none"), grid.fixed("power"), grid.fixed("none")], [0, [2, 3, 2], 1, undefined, [100, 200, 400], undefined, undefined, false, true]);
  equal([grid.places({}), grid.places({ power: 290, node: "N5" }), grid.places({ power: 310, node: "none" }), grid.places({ power: 150 }), grid.places({ power: 1 })], [[0, 1, 0], [0, 1, 1], [0, 2, 0], [0, 0, 0], [0, 0, 0]]);
  equal([grid.at([1, 2, 1]).step_time, grid.at([0, 2, 1]), grid.at([0, 1, 0]).step_time], [10 / 3 + 1 - 0.1, null, 5]);
  equal([grid.candidates({}).map(({ strategy }) => strategy), grid.candidates({ power: 400, node: "N5" }).map(({ strategy }) => strategy)], [["T2", "D2"], ["D2"]]);
  // at 100 W the first leaves 4 % of its memory and gives way; at 200 W the second does not fit; at 400 W both do, and the first is faster
  equal([100, 200, 400].map((power) => grid.find({ power, strategy: "auto" }).point.strategy), ["D2", "T2", "T2"]);
  equal([grid.find({ power: 390, node: "N7", strategy: "D2" }).settings, grid.find({ power: 210 }, "D2").point.strategy], [{ power: 400, strategy: "D2" }, "D2"]);
  equal(grid.find({ strategy: "P9", power: 400 }).note, "P9 is none of the strategies that this page holds here: T2 is taken");
  equal([grid.find({}, "T2").note, grid.find({}, "D2").point.step_time], [undefined, 6]);
  equal(new Grid(designs(), "D2").find({}, "T2").point.strategy, "D2");
  equal([grid.rows({}).rows, grid.rows({}).count, grid.rows({}).held], [[{ strategy: "T2", time: 5, fits: true }, { strategy: "D2", time: 6, fits: false }], 2, true]);
  equal(grid.rows({ power: 400 }).rows.map(({ time }) => time), [10 / 3, 10 / 3 + 1]);
  equal(grid.curve(grid.axis("power"), { node: "N5" }, "D2"), { x: [100, 200, 400], y: [10.9, 5.9, 10 / 3 + 1 - 0.1], fits: [true, false, true], bound: ["network", "network", "network"], at: 200 });
  equal(grid.curve(grid.axis("power"), { power: 400 }, "T2").at, 400);
  equal(grid.curve(grid.axis("power"), {}, "T2").bound, ["compute", "compute", "compute"]);
  equal([grid.numbers().map(({ path }) => path), grid.told()], [["power"], "strategy (the best 2), power, node"]);
};

tests["auto takes a design that fits, with memory to spare, then the fastest"] = ({ Grid }) => {
  const auto = (...points) => new Grid({ axes: [{ path: "strategy", kind: "strategy", values: points.map((_, i) => i), own: 0 }], points: points.map((point, i) => ({ strategy: i, feasible: true, memory: { weights: 1 }, capacity: 10, ...point })) }).find({ strategy: "auto" }).point.strategy;
  equal([auto({ step_time: 3 }, { step_time: 2 }, { step_time: 2.5 }), auto({ step_time: 2 }, { step_time: 2 }), auto({ step_time: null }, { step_time: 9 }), auto({ step_time: 9 }, { step_time: null })], [1, 0, 1, 0]);
  equal([auto({ step_time: 1, feasible: false }, { step_time: 9, memory: { weights: 5, more: 4.9 } }), auto({ step_time: 1, memory: { a: 5, b: 4.6 } }, { step_time: 2, memory: { a: 5, b: 4.4 } })], [1, 1]);
  equal([auto({ step_time: 1, capacity: 0 }, { step_time: 2 }), auto({ step_time: 2, capacity: 0 }, { step_time: 1, memory: { a: 9.8 } })], [0, 0]);
};

tests["a grid without strategies says why a design is missing"] = ({ Grid }) => {
  const { axes, points, missing } = designs();
  const grid = new Grid({ axes: axes.slice(1), points: points.slice(0, 6), missing }, "T2");
  equal([grid.strategy, grid.find({ power: 100 }).point.step_time, grid.find({ power: 100 }).settings, grid.find({ power: 400, node: "N5" })], [-1, 10, { power: 100 }, { error: "no such node" }]);
  equal(grid.curve(grid.axis("power"), { node: "N5" }), { x: [100, 200, 400], y: [9.9, 4.9, null], fits: [true, true, false], bound: ["compute", "compute", "compute"], at: 200 });
  const whole = new Grid({ axes: [{ path: "a", kind: "whole", values: [1, 2, 4], own: 0 }, axes[2]], points: [], missing: { 3: "a = 2 does not divide 5", 4: "a = 4 is too many" } }, "T2");
  equal([whole.find({ a: 2, node: "N5" }), whole.find({ a: 4 }), whole.find({})], [{ error: "a = 2 does not divide 5" }, { error: "a = 4 is too many" }, { error: "this page holds no such design" }]);
  const empty = new Grid({}, "T2");
  equal([empty.points, empty.axes, empty.missing, empty.find({}).error], [[], [], {}, "this page holds no such design"]);
};
