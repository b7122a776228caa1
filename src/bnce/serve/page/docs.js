// The HTTP interface for people, made of /openapi.json with nothing from outside.

function make(tag, content, className) {
  const element = document.createElement(tag);
  if (content !== undefined) element.textContent = content;
  if (className) element.className = className;
  return element;
}

// A schema as a person would write an example of it: names, kinds and what they are for.
function outline(schema, all, indent = "") {
  if (!schema) return "";
  if (schema.$ref) return outline(all[schema.$ref.split("/").pop()], all, indent);
  if (schema.anyOf) return schema.anyOf.map((part) => outline(part, all, indent)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `[${outline(schema.items, all, indent)}, …]`;
  if (schema.type !== "object" || !schema.properties) return schema.type ?? "any";
  const fields = Object.entries(schema.properties).map(([name, field]) => {
    const preset = field.default === undefined || field.default === null ? "" : ` = ${JSON.stringify(field.default)}`;
    const why = field.description ? `  // ${field.description}` : "";
    return `${indent}  "${name}": ${outline(field, all, `${indent}  `)}${preset},${why}`;
  });
  return `{\n${fields.join("\n")}\n${indent}}`;
}

function section(path, method, operation, all) {
  const place = make("section");
  const head = make("h2");
  head.append(make("code", `${method.toUpperCase()} `, "method"), make("code", path));
  place.append(head, make("p", operation.description ?? ""));
  for (const parameter of operation.parameters ?? []) {
    const preset = parameter.schema.default === undefined ? "" : ` = ${JSON.stringify(parameter.schema.default)}`;
    place.append(make("pre", `?${parameter.name}: ${outline(parameter.schema, all)}${preset}`));
  }
  const body = operation.requestBody?.content["application/json"].schema;
  if (body) place.append(make("h3", "Request"), make("pre", outline(body, all)));
  const answer = operation.responses["200"]?.content?.["application/json"]?.schema;
  if (answer?.$ref) place.append(make("h3", "Answer"), make("pre", outline(answer, all)));
  const refusals = Object.entries(operation.responses).filter(([status]) => Number(status) >= 400);
  if (refusals.length) {
    place.append(make("h3", "Refusals"));
    const items = make("ul");
    for (const [status, told] of refusals) items.append(make("li", `${status}: ${told.description}`));
    place.append(items);
  }
  return place;
}

const endpoints = document.getElementById("endpoints");
try {
  const api = await (await fetch("/openapi.json")).json();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      endpoints.append(section(path, method, operation, api.components.schemas));
    }
  }
} catch {
  endpoints.append(make("p", "The server does not answer: is it still running?"));
}
