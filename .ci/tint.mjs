// Compiles every WGSL text of a folder with Tint, the compiler of Chromium: node tint.mjs FOLDER.
// It judges what naga does not: whether barriers are reached by all invocations of a workgroup.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createRequire } from "node:module";

// The package lies where the caller works, not beside this file.
const { create } = createRequire(join(process.cwd(), "x.js"))("webgpu");
const folder = process.argv[2];
const files = readdirSync(folder).filter((f) => f.endsWith(".wgsl"));
const gpu = create([]);
const adapter = await gpu.requestAdapter();
if (!adapter) {
  console.error("tint: Dawn finds no adapter");
  process.exit(1);
}
// naga knows subgroups without being told, Tint does not.
const subgroups = "subgroups";
const device = await adapter.requestDevice({ requiredFeatures: adapter.features.has(subgroups) ? [subgroups] : [] });
let wrong = 0;
for (const file of files) {
  device.pushErrorScope("validation");
  const text = readFileSync(join(folder, file), "utf8");
  const module = device.createShaderModule({ code: text.includes("subgroup") ? `enable ${subgroups};\n${text}` : text });
  const info = await module.getCompilationInfo();
  await device.popErrorScope();
  const errors = info.messages.filter((m) => m.type === "error");
  for (const m of errors) console.error(`${file}:${m.lineNum}: ${m.message}`);
  wrong += errors.length > 0;
}
console.log(`tint: ${files.length} texts, ${wrong} refused`);
process.exit(files.length === 0 || wrong > 0 ? 1 : 0);
