/** Numbers from 0 to 1 that are the same each time: Marsaglia's xorshift (2003), seeded. */

export function random(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
