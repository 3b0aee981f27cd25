// Texts out of what people have: lines, tables with commas or tabs, JSON lines.

// As data/formats/columns.py knows them.
const TEXTS = ["text", "texts", "body", "content", "abstract", "description", "document", "sentence", "query", "question"];
const TITLES = ["title", "headline", "name"]; // come before such a text, or stand in for it
const LABELS = ["labels", "label", "tags", "tag", "categories", "category", "topics", "topic", "keywords", "subjects"];

/** The distinct texts of a file by its name, and what they were taken from. */
export function textsOf(name, content) {
  const kind = /\.(csv|tsv|jsonl|ndjson|json)$/i.exec(name)?.[1].toLowerCase() ?? "txt";
  const plain = content.replace(/^\uFEFF/, "");
  const [texts, said] = kind === "csv" || kind === "tsv" ? table(cells(plain, kind === "csv" ? "," : "\t")) : kind === "txt" ? [lines(plain), "lines"] : objects(plain);
  return { texts: [...new Set(texts.map((text) => text.trim()).filter(Boolean))], said };
}

const lines = (content) => content.split(/\r?\n/);

/** JSON lines, or one list: texts themselves, or objects that have some. */
function objects(content) {
  const rows = content.trimStart().startsWith("[") ? JSON.parse(content) : lines(content).filter((line) => line.trim()).map((line) => JSON.parse(line));
  const plain = rows.filter((row) => typeof row === "string");
  const records = rows.filter((row) => row !== null && typeof row === "object");
  const fields = [...new Set(records.flatMap((record) => Object.keys(record).filter((field) => typeof record[field] === "string")))];
  if (!fields.length) return [plain, "strings"];
  const [texts, said] = joined(fields, records.map((record) => fields.map((field) => (typeof record[field] === "string" ? record[field] : ""))), "field");
  return [[...plain, ...texts], said];
}

/** A table's rows of cells; a cell in quotes may hold separators, line ends and doubled quotes. */
function cells(content, separator) {
  const rows = [[""]];
  let quoted = false;
  for (let place = 0; place < content.length; place += 1) {
    const character = content[place];
    const row = rows.at(-1);
    if (quoted && character === '"' && content[place + 1] === '"') row[row.length - 1] += content[(place += 1)];
    else if (character === '"' && (quoted || row.at(-1) === "")) quoted = !quoted;
    else if (!quoted && character === separator) row.push("");
    else if (!quoted && character === "\n") rows.push([""]);
    else if (quoted || character !== "\r") row[row.length - 1] += character;
  }
  return rows.filter((row) => row.some((cell) => cell.trim()));
}

/** The first row is a header, unless it is a text itself: the one cell of a column that has no known name. */
function table(rows) {
  if (!rows.length) return [[], "no rows"];
  const [header, ...others] = rows;
  if (header.length === 1 && ![...TEXTS, ...TITLES].includes(known(header[0]))) return [rows.map(([cell]) => cell), "the one column"];
  return joined(header, others, "column");
}

const known = (name) => name.trim().toLowerCase();

/** The texts in the columns that hold them, which are told. */
function joined(header, rows, noun) {
  const places = textPlaces(header.map(known), rows);
  const names = places.map((place) => header[place].trim() || `number ${place + 1}`);
  return [rows.map((row) => places.map((place) => (row[place] ?? "").trim()).join(" ")), `the ${noun}${names.length > 1 ? "s" : ""} ${names.join(" and ")}`];
}

/** A text, a title and its body, or one of these; where no name is known, the longest that has no labels. */
function textPlaces(names, rows) {
  const [body, title] = [TEXTS, TITLES].map((some) => some.map((name) => names.indexOf(name)).find((place) => place >= 0));
  if (["text", "texts"].includes(names[body])) return [body];
  const found = [title, body].filter((place) => place !== undefined);
  if (found.length) return found;
  const length = (place) => (LABELS.includes(names[place]) ? -1 : rows.reduce((sum, row) => sum + (row[place]?.length ?? 0), 0));
  const lengths = names.map((_, place) => length(place));
  return [lengths.indexOf(Math.max(...lengths))];
}
