// Print each message of an MCAP file as a line of JSON, read with the libraries of the Foxglove app.
import { open } from "node:fs/promises";
import { createRequire } from "node:module";
const { McapIndexedReader } = createRequire(process.cwd() + "/")("@mcap/core");
const { FileHandleReadable } = createRequire(process.cwd() + "/")("@mcap/nodejs");
const { parse } = createRequire(process.cwd() + "/")("@foxglove/rosmsg");
const { MessageReader } = createRequire(process.cwd() + "/")("@foxglove/rosmsg2-serialization");

const plain = (_key, value) =>
  typeof value === "bigint" ? Number(value) : ArrayBuffer.isView(value) ? Array.from(value, (x) => (typeof x === "bigint" ? Number(x) : x)) : value;
const number = (value) => (Number.isNaN(value) ? "nan" : value === Infinity ? "inf" : value === -Infinity ? "-inf" : value);
const readable = new FileHandleReadable(await open(process.argv[2]));
const reader = await McapIndexedReader.Initialize({ readable });
const readers = new Map();
for await (const message of reader.readMessages()) {
  const channel = reader.channelsById.get(message.channelId);
  if (!readers.has(channel.id)) {
    const schema = reader.schemasById.get(channel.schemaId);
    readers.set(channel.id, new MessageReader(parse(new TextDecoder().decode(schema.data), { ros2: true })));
  }
  const value = readers.get(channel.id).readMessage(message.data);
  const line = JSON.stringify([channel.topic, String(message.logTime), value], (k, v) => {
    const flat = plain(k, v);
    return Array.isArray(flat) ? flat.map(number) : number(flat);
  });
  process.stdout.write(line + "\n");
}
