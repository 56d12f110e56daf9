// Run by Node: node_calls.js PROTO_FOLDER TARGET. Calls by the proto files alone and prints what it was told.
const fs = require('fs');
const path = require('path');
const { promisify } = require('util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [protos, target] = process.argv.slice(2);
const load = (file) =>
  grpc.loadPackageDefinition(loader.loadSync(file, { includeDirs: [protos], keepCase: true, enums: String, oneofs: true }));
const options = { 'grpc.service_config': fs.readFileSync(path.join(protos, 'sentiment/v1/service_config.json'), 'utf8') };
const { SentimentService } = load('sentiment/v1/sentiment.proto').sentiment.v1;
const { GRPCInferenceService } = load('sentiment/oip/inference.proto').inference;
const client = new SentimentService(target, grpc.credentials.createInsecure(), options);
const inference = new GRPCInferenceService(target, grpc.credentials.createInsecure(), options);

const ask = (of, method, request, milliseconds = 20000) =>
  promisify(of[method].bind(of))(request, { deadline: Date.now() + milliseconds });

async function refusal(request, milliseconds) {
  try {
    await ask(client, 'Classify', request, milliseconds);
  } catch (error) {
    return [error.code, error.details, error.metadata.get('grpc-status-details-bin').length];
  }
  return [0];
}

function stream(texts) {
  return new Promise((resolve, reject) => {
    const found = {};
    const call = client.ClassifyStream({ deadline: Date.now() + 20000 });
    call.on('data', (answer) => {
      found[answer.id] = answer.response ? answer.response.prediction.label : answer.error.code;
    });
    call.on('error', reject);
    call.on('end', () => resolve(found));
    texts.forEach((text, index) => call.write({ id: String(index), item: { text } }));
    call.end();
  });
}

async function main() {
  const labels = [];
  for (let call = 0; call < 60; call += 1) labels.push((await ask(client, 'Classify', { text: 'a good film' })).prediction.label);
  const batch = await ask(client, 'ClassifyBatch', { items: [{ text: 'bad' }, { text: '' }] });
  const tensor = { name: 'text', datatype: 'BYTES', shape: [2], contents: { bytes_contents: [Buffer.from('good'), Buffer.from('bad')] } };
  const inferred = await ask(inference, 'ModelInfer', { model_name: 'tiny', inputs: [tensor], outputs: [{ name: 'score' }] });
  console.log(
    JSON.stringify({
      labels,
      batch: batch.results.map((one) => (one.response ? one.response.prediction.label : one.error.code)),
      stream: await stream(['great', ' ', 'awful']),
      scores: [0, 4].map((at) => inferred.raw_output_contents[0].readFloatLE(at)),
      ready: (await ask(inference, 'ModelReady', { name: 'tiny' })).ready,
      wrong: await refusal({ text: '' }),
      late: await refusal({ text: 'good' }, -1),
    }),
  );
  client.close();
  inference.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
