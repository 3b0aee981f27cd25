// Values that fit a JSON schema, so that a reader sees a message and not its grammar.

const BY_NAME = {
  search: "", score: 0.62, probability: 0.81, similarity: 0.74, origin: "trained", time: "2026-01-31T12:00:00Z", note: "", to_version: 0,
  count: 50, start: 0, limit: 50, version: 1, kind: "exact", name: "demo", encoder: "static", field: "text", code: "wrong_message",
};

/** Examples of the schemas of a document; `label` is one of the model's, for whatever asks for a key or a text. */
export function exampleOf(schemas, label) {
  const resolved = (schema) => ("$ref" in schema ? schemas[schema.$ref.split("/").at(-1)] : schema);
  const names = { ...BY_NAME, key: label.key, text: label.text, labels: label.key };

  function of(given, name = "") {
    const schema = resolved(given);
    if (schema.examples?.length) return schema.examples[0];
    if ("const" in schema) return schema.const;
    if (schema.enum) return schema.enum.includes(names[name]) ? names[name] : schema.enum[0];
    const choices = schema.anyOf ?? schema.oneOf;
    if (choices && !schema.properties) return of(choices.find(({ type }) => type !== "null") ?? choices[0], name);
    if (schema.properties) return Object.fromEntries(Object.entries(schema.properties).map(([inner, one]) => [inner, of(one, inner)]));
    if (schema.type === "array") return schema.items ? [of(schema.items, name)] : [];
    return plain(schema, name);
  }

  function plain(schema, name) {
    const known = names[name];
    if (schema.type === "string") return typeof known === "string" ? known : "";
    if (schema.type === "boolean") return schema.default ?? false;
    if (schema.type === "integer") return Number.isInteger(known) ? known : (schema.default ?? Math.max(schema.minimum ?? 1, 1));
    if (schema.type === "number") return typeof known === "number" ? known : (schema.default ?? 0.5);
    return schema.type === "object" ? {} : null;
  }

  return { of, properties: (schema) => resolved(schema).properties ?? {} };
}
