// What the lens recorded: the likeliest tokens at each place and position, and what it made of the token that follows.
export const hasLens = (data, token) => token >= data.lensFrom;

export function readLens(data, place, token) {
  const at = token - data.lensFrom;
  const ids = data.get("lens.ids").vector(place, at);
  const probabilities = data.get("lens.probabilities").vector(place, at);
  const logits = data.get("lens.logits").vector(place, at);
  return {
    top: ids.map((id, i) => ({ id, probability: probabilities[i], logit: logits[i] })),
    following: data.get("lens.following").at(place, at),
    rank: data.get("lens.ranks").at(place, at),
  };
}
