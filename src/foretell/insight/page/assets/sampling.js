// The next token's distribution under temperature, top-k and top-p, in this order: the definitions that generation has.
// Temperature 0 leaves the likeliest alone. Top-k keeps what ties with the last of the k. Top-p keeps the likeliest
// until their probabilities reach the mass.

export function byLikelihood(logits) {
  const order = Uint32Array.from(logits, (_, i) => i);
  return order.sort((a, b) => logits[b] - logits[a] || a - b);
}

// Probabilities in the order of `order`; those behind the `kept` first are 0.
export function distribution(logits, order, { temperature, topK, topP }) {
  const largest = logits[order[0]];
  if (temperature === 0) return { kept: 1, probabilities: Float64Array.of(1) };
  const scaled = Float64Array.from(order, (id) => (logits[id] - largest) / temperature);
  let kept = scaled.length;
  if (topK !== null && topK < kept) {
    const smallest = scaled[topK - 1];
    for (kept = topK; kept < scaled.length && scaled[kept] === smallest; kept++);
  }
  let probabilities = normalized(scaled, kept);
  if (topP < 1) {
    let before = 0, within = 0;
    while (within < kept && before < topP) before += probabilities[within++];
    kept = within;
    probabilities = normalized(scaled, kept);
  }
  return { kept, probabilities };
}

function normalized(scaled, kept) {
  const shares = new Float64Array(kept);
  let total = 0;
  for (let i = 0; i < kept; i++) total += shares[i] = Math.exp(scaled[i]);
  for (let i = 0; i < kept; i++) shares[i] /= total;
  return shares;
}
