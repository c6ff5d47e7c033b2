/** Values of a plan's expressions (splat_py/pages/playground_symbols.py): a number, a variable's name, or [operator, a, b]. */

const operators = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  "//": (a, b) => Math.floor(a / b),
  "**": (a, b) => a ** b,
  min: Math.min,
};

export function evaluate(expression, variables) {
  if (typeof expression === "string") return variables[expression];
  if (!Array.isArray(expression)) return expression;
  const [operator, ...operands] = expression;
  return operators[operator](...operands.map((operand) => evaluate(operand, variables)));
}
