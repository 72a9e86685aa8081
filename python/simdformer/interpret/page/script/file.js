// A page that is a file: everything that is drawn lies in its elements #data, #arrays and #before.

const textOf = (id) => document.getElementById(id).textContent;

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64); // since 2025
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

async function numbersOf(id) {
  const squeezed = new Blob([bytesOf(textOf(id))]).stream();
  return new Response(squeezed.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

if (!("DecompressionStream" in window))
  document.body.textContent = "This page needs a browser of 2023 or later.";
const told = JSON.parse(textOf("data"));
const arrays = await numbersOf("arrays");
const opened = openPage(document, told, arrays, textOf("before") ? await numbersOf("before") : arrays);
document.title = `${told.title} · simdformer`;
window.page = opened; // for the console of the browser
document.documentElement.dataset.ready = "yes";
