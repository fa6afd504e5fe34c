/** An element with properties, or attributes where it has no such property, and children. */
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) name in node ? (node[name] = value) : node.setAttribute(name, value);
  node.append(...children);
  return node;
}
