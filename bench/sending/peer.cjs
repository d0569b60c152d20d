// Contender 4, in its own language: posts to every subscription of a file and prints what it took as JSON.
const fs = require("node:fs");
const https = require("node:https");
const webpush = require("web-push");

const job = JSON.parse(process.argv[2]);
const more = JSON.parse(process.argv[3]);

function people() {
  const lines = fs.readFileSync(job.people, "utf8").split("\n");
  return lines.slice(0, more.warm + job.count).map((line) => {
    const one = JSON.parse(line);
    return { endpoint: `https://${job.local}/${one.endpoint.split("/").slice(3).join("/")}`, keys: one.keys };
  });
}

async function main() {
  const all = people();
  const agent = new https.Agent({ keepAlive: true, maxSockets: more.concurrency });
  const vapidDetails = {
    subject: more.subject, publicKey: process.env.BENCH_VAPID_PUBLIC, privateKey: process.env.BENCH_VAPID_KEY,
  };
  const send = async (some) => {
    let next = 0;
    const one = async () => {
      while (next < some.length) {
        await webpush.sendNotification(some[next++], more.payload, { agent, vapidDetails, TTL: more.ttl });
      }
    };
    await Promise.all(Array.from({ length: more.concurrency }, one));
  };
  await send(all.slice(0, more.warm));
  const cpu = process.cpuUsage();
  const started = process.hrtime.bigint();
  await send(all.slice(more.warm));
  const seconds = Number(process.hrtime.bigint() - started) / 1e9;
  const used = process.cpuUsage(cpu);
  agent.destroy();
  console.log(JSON.stringify({ sent: all.length - more.warm, seconds, cpu: (used.user + used.system) / 1e6 }));
}

main().catch((error) => { console.error(error); process.exit(1); });
