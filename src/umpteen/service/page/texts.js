// Texts out of what people have: lines, tables with commas or tabs, JSON lines.

const NAMES = ["text", "body", "content", "title", "description", "sentence", "query", "document", "question", "abstract"];

/** The distinct texts of a file by its name, and what they were taken from. */
export function textsOf(name, content) {
  const kind = /\.(csv|tsv|jsonl|ndjson|json)$/i.exec(name)?.[1].toLowerCase() ?? "txt";
  const plain = content.replace(/^\uFEFF/, "");
  const [texts, said] = kind === "csv" || kind === "tsv" ? column(cells(plain, kind === "csv" ? "," : "\t")) : kind === "txt" ? [lines(plain), "lines"] : objects(plain);
  return { texts: [...new Set(texts.map((text) => text.trim()).filter(Boolean))], said };
}

const lines = (content) => content.split(/\r?\n/);

/** JSON lines, or one list: texts themselves, or objects that have one. */
function objects(content) {
  const rows = content.trimStart().startsWith("[") ? JSON.parse(content) : lines(content).filter((line) => line.trim()).map((line) => JSON.parse(line));
  const first = rows.find((row) => row !== null && typeof row === "object") ?? {};
  const field = NAMES.find((name) => typeof first[name] === "string") ?? Object.keys(first).find((name) => typeof first[name] === "string");
  return [rows.map((row) => (typeof row === "string" ? row : String(row?.[field] ?? ""))), field ? `the field ${field}` : "strings"];
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

/** The column that has a known name, or else, of a table without a header, the one with the longest texts. */
function column(rows) {
  if (!rows.length) return [[], "no rows"];
  const header = rows[0].map((cell) => cell.trim().toLowerCase());
  const name = NAMES.find((one) => header.includes(one));
  if (name) return [rows.slice(1).map((row) => row[header.indexOf(name)] ?? ""), `the column ${name}`];
  const length = (place) => rows.reduce((sum, row) => sum + (row[place]?.length ?? 0), 0);
  const longest = rows[0].map((_, place) => place).sort((one, two) => length(two) - length(one))[0];
  return [rows.map((row) => row[longest] ?? ""), `column ${longest + 1}, the longest`];
}
