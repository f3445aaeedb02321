// What zarrita reads, as JSON: runs in node and in a page of a browser.

const AT_ONCE = 32;

/** Read arrays; `asked` are objects of `url`, `format`, `path` and perhaps `box`. */
export async function readAll(zarr, asked) {
  const found = [];
  for (let first = 0; first < asked.length; first += AT_ONCE) {
    const some = asked.slice(first, first + AT_ONCE).map((one) => readOrFail(zarr, one));
    found.push(...(await Promise.all(some)));
  }
  return found;
}

async function readOrFail(zarr, asked) {
  try {
    return await readArray(zarr, asked);
  } catch (error) {
    return { error: `${error}${error.cause ? ` (${error.cause})` : ""}` };
  }
}

async function readArray(zarr, { url, format, path, box }) {
  const open = format === 2 ? zarr.open.v2 : zarr.open.v3;
  const place = zarr.root(new zarr.FetchStore(url)).resolve(path);
  const array = await open(place, { kind: "array" });
  const wanted = box && box.map(([start, stop]) => zarr.slice(start, stop));
  // of an array without axes, zarrita gives a value instead of an array
  const found = array.shape.length ? await zarr.get(array, wanted) : await array.getChunk([]);
  const { data, shape, stride } = found;
  const said = { dtype: array.dtype, shape, stride };
  if (ArrayBuffer.isView(data)) {
    return { ...said, bytes: toHex(data) };
  }
  // text, and booleans
  return { ...said, values: Array.from(data) };
}

function toHex(data) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the paths of all arrays below a url, as consolidated metadata list them. */
export async function listArrays(zarr, { url, format }) {
  const store = await zarr.withConsolidatedMetadata(new zarr.FetchStore(url), {
    format: format === 2 ? "v2" : "v3",
  });
  return store.contents().filter((one) => one.kind === "array").map((one) => one.path);
}

/** Say whether JavaScript has numbers of 16 bits, without which zarrita has none. */
export async function hasFloat16() {
  return "Float16Array" in globalThis;
}
