#!/usr/bin/env python3
"""Lock cycles and hand-off beside etcd and ZooKeeper: the same machine, the same disk, the same minutes.

    PEERS=DIR benchmarks/compare.py [--rounds 3] [--seconds 4] [--clients 1,16,64] [--only quorate,etcd,zookeeper]

PEERS is the folder with the peers' load clients (etcdbench/main.go, zkbench/ZkBench.java); README.md beside this
file says what they do and what they need. A peer that cannot run is skipped, and the table says so.

In each round every system is started on an empty directory, runs alone, is warmed up, is measured, and is stopped;
the order changes from round to round. Nothing is pinned. Figures are medians [lowest-highest] of the rounds.
"""
import argparse, glob, json, os, platform, shutil, signal, socket, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# Not the system's temporary folder, which may live in memory.
SCRATCH = os.environ.get("SCRATCH", os.path.join(ROOT, "target", "compare"))
BINARY = os.environ.get("QUORATE", os.path.join(ROOT, "target", "release", "quorate"))
PEERS = os.environ.get("PEERS", "")
# Where Debian's packages put the class files of ZooKeeper and Curator.
JARS = os.environ.get("JARS", "/usr/share/java")
GOPATH = os.environ.get("GOPATH", "/usr/share/gocode")
WARM_UP_SECONDS = 4
HANDOFF_WAITERS = 8
HANDOFF_HOLD_MS = 2


class Skip(Exception):
    """Why a system is not measured."""


def port():
    """A port that nobody has."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def say(text):
    print(text, file=sys.stderr, flush=True)


class System:
    """One server, and the client that loads it."""

    def __init__(self):
        self.process = None
        self.data = os.path.join(SCRATCH, self.name)

    def start(self):
        shutil.rmtree(self.data, ignore_errors=True)
        os.makedirs(self.data)
        self.port = port()
        log = open(os.path.join(SCRATCH, f"{self.name}.log"), "ab")
        self.process = subprocess.Popen(self.server(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while True:
            if self.process.poll() is not None:
                raise Skip(f"{self.name} ended while it was started; see {log.name}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise Skip(f"{self.name} does not listen; see {log.name}")
                time.sleep(0.05)
        # All of them elect themselves or load classes for a moment after they listen.
        time.sleep(2)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        shutil.rmtree(self.data, ignore_errors=True)

    def measure(self, command, seconds):
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
        lines = run.stdout.strip().splitlines()
        if run.returncode != 0 or not lines:
            raise RuntimeError(f"{self.name}: {command} ended with {run.returncode}: {run.stderr[-500:]}")
        return json.loads(lines[-1])

    def lock(self, clients, seconds):
        return self.figures(self.measure(self.client("lock", clients, seconds), seconds))

    def handoff(self, waiters, seconds):
        return self.figures(self.measure(self.client("handoff", waiters + 1, seconds), seconds))

    def figures(self, result):
        return {key: result[key] for key in ("per_s", "p50_ms", "p99_ms")}


class Quorate(System):
    name = "quorate"

    def prepare(self):
        if not os.path.exists(BINARY):
            raise Skip(f"{BINARY} is not there: cargo build --release, or set QUORATE")

    def version(self):
        return output([BINARY, "--version"])

    def server(self):
        return [BINARY, "serve", "--data", os.path.join(self.data, "data"), "--listen", f"127.0.0.1:{self.port}",
                "--log", "warn"]

    def client(self, what, clients, seconds):
        command = [BINARY, "--server", f"127.0.0.1:{self.port}", "--json", "bench", what, "--seconds", str(seconds)]
        if what == "lock":
            return command + ["--clients", str(clients)]
        return command + ["--waiters", str(clients - 1), "--hold", f"{HANDOFF_HOLD_MS}ms"]

    def figures(self, result):
        if result["errors"]:
            say(f"  quorate had {result['errors']} errors")
        per_s = result.get("cycles_per_second", result.get("handoffs_per_second"))
        return {"per_s": per_s, "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"]}


class Etcd(System):
    name = "etcd"

    def prepare(self):
        need("etcd", "etcd-server")
        self.bench = os.path.join(SCRATCH, "etcdbench")
        source = os.path.join(peers(), "etcdbench")
        if not os.path.exists(self.bench):
            need("go", "golang-go golang-etcd-server-dev")
            go = {**os.environ, "GO111MODULE": "off", "GOPATH": GOPATH, "GOCACHE": os.path.join(SCRATCH, "gocache")}
            build(["go", "build", "-o", self.bench, "."], source, go)

    def version(self):
        return output(["etcd", "--version"]).replace("etcd Version: ", "etcd ")

    def server(self):
        url, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{port()}"
        return ["etcd", "--name", "n0", "--data-dir", os.path.join(self.data, "data"), "--listen-client-urls", url,
                "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"n0={peer}", "--logger", "zap", "--log-level", "error"]

    def client(self, what, clients, seconds):
        return [self.bench, "-ep", f"127.0.0.1:{self.port}", "-op", what, "-clients", str(clients),
                "-secs", str(seconds), "-hold", str(HANDOFF_HOLD_MS)]


class ZooKeeper(System):
    name = "zookeeper"

    def prepare(self):
        need("java", "default-jre-headless")
        wanted = ["curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava",
                  "slf4j-api", "slf4j-nop", "failureaccess", "snappy-java", "commons-cli", "jackson-*",
                  "netty-*", "audience-annotations*", "metrics-core*", "dropwizard*"]
        jars = [jar for name in wanted for jar in sorted(glob.glob(os.path.join(JARS, name + ".jar")))]
        for name in ("zookeeper", "curator-recipes"):
            if not os.path.exists(os.path.join(JARS, name + ".jar")):
                raise Skip(f"{name}.jar is not in {JARS}: apt-get install zookeeper libcurator-recipes-java, or set JARS")
        classes = os.path.join(SCRATCH, "zkbench")
        self.classpath = ":".join([classes] + jars)
        source = os.path.join(peers(), "zkbench", "ZkBench.java")
        if not os.path.exists(os.path.join(classes, "ZkBench.class")):
            need("javac", "default-jdk-headless")
            os.makedirs(classes, exist_ok=True)
            build(["javac", "-cp", self.classpath, "-d", classes, source], os.path.dirname(source), None)

    def version(self):
        java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[0]
        return f"ZooKeeper {self.jar_version('zookeeper')}, Curator {self.jar_version('curator-recipes')}, {java}"

    def jar_version(self, name):
        """The version in the name of the class file that the plain name points to, or stands beside."""
        plain = os.path.realpath(os.path.join(JARS, name + ".jar"))
        beside = sorted(glob.glob(os.path.join(JARS, name + "-[0-9]*.jar")))
        names = [os.path.basename(path)[len(name) + 1:-4] for path in [plain] + beside]
        return next((version for version in names if version[:1].isdigit()), "of unknown version")

    def java(self, heap, *rest):
        return ["java", "-Xmx512m", *heap, "-cp", self.classpath, *rest]

    def server(self):
        config = os.path.join(self.data, "zoo.cfg")
        with open(config, "w") as file:
            file.write(f"tickTime=2000\ndataDir={self.data}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
                       "admin.enableServer=false\nmaxClientCnxns=0\n")
        return self.java([], "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)

    def client(self, what, clients, seconds):
        return self.java(["-XX:+UseSerialGC"], "ZkBench", f"127.0.0.1:{self.port}", what, str(clients), str(seconds))


def output(command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]


def need(program, package):
    if not shutil.which(program):
        raise Skip(f"{program} is not installed: apt-get install {package}")


def peers():
    if not PEERS:
        raise Skip("PEERS is not set: the folder with the peers' load clients")
    if not os.path.isdir(PEERS):
        raise Skip(f"PEERS={PEERS} is no folder")
    return PEERS


def build(command, folder, environment):
    say(f"building: {' '.join(command)}")
    if subprocess.run(command, cwd=folder, env=environment).returncode != 0:
        raise Skip(f"{command[0]} could not build the client in {folder}")


def fdatasync_rate(preallocated, seconds=1.0):
    """Durable 4 KiB writes a second: at the end of a growing file, or within one that was written with zeros."""
    path, block = os.path.join(SCRATCH, "fdatasync"), b"\1" * 4096
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if preallocated:
            os.pwrite(file, bytes(64 << 20), 0)
            os.fsync(file)
        count, begin = 0, time.monotonic()
        while time.monotonic() < begin + seconds:
            os.pwrite(file, block, count * 4096 % (64 << 20))
            os.fdatasync(file)
            count += 1
        return count / (time.monotonic() - begin)
    finally:
        os.close(file)
        os.unlink(path)


def busy():
    """How many other tasks want a CPU just now: what disturbs the figures."""
    counts = []
    for _ in range(25):
        with open("/proc/loadavg") as file:
            counts.append(int(file.read().split()[3].split("/")[0]) - 1)
        time.sleep(0.02)
    return statistics.mean(counts)


def spread(values, form="{:,.0f}"):
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.median(values))} [{low}-{high}]"


def one_round(number, system, args, results, disturbed):
    say(f"round {number}: {system.name}")
    try:
        system.start()
        system.lock(16, WARM_UP_SECONDS)
        for clients in args.clients:
            disturbed.append(busy())
            results.setdefault((system.name, clients), []).append(system.lock(clients, args.seconds))
            say(f"  {clients:3} clients: {results[(system.name, clients)][-1]}")
        if args.handoff:
            disturbed.append(busy())
            found = system.handoff(HANDOFF_WAITERS, args.seconds)
            results.setdefault((system.name, "handoff"), []).append(found)
            say(f"  handoff: {found}")
    finally:
        system.stop()


def cell(results, key, name, form="{:,.0f}"):
    found = results.get(key)
    return spread([one[name] for one in found], form) if found else "-"


def ratio(results, own, other):
    mine, theirs = results.get(own), results.get(other)
    if not mine or not theirs:
        return "-"
    median = lambda runs: statistics.median(one["per_s"] for one in runs)
    return f"{median(mine) / median(theirs):.1f}x"


def print_tables(systems, args, results):
    names = [system.name for system in systems]
    print("\n### Lock cycles: acquire and release, each client its own connection, session and name\n")
    print("| clients | system | cycles/s | p50 ms | p99 ms | Quorate has |")
    print("|---|---|---|---|---|---|")
    rows = [(str(clients), clients) for clients in args.clients]
    for title, what in rows:
        table_rows(names, title, what, results)
    if args.handoff:
        print(f"\n### Hand-off: 1 holder and {HANDOFF_WAITERS} waiters on one lock, held {HANDOFF_HOLD_MS} ms;"
              " from just before the release to the next grant\n")
        print("| waiters | system | hand-offs/s | p50 ms | p99 ms | Quorate has |")
        print("|---|---|---|---|---|---|")
        table_rows(names, str(HANDOFF_WAITERS), "handoff", results)


def table_rows(names, title, what, results):
    for name in names:
        key = (name, what)
        more = "" if name == "quorate" else ratio(results, ("quorate", what), key)
        print(f"| {title} | {name} | {cell(results, key, 'per_s')} | {cell(results, key, 'p50_ms', '{:.2f}')} "
              f"| {cell(results, key, 'p99_ms', '{:.1f}')} | {more} |")


def conditions(systems, skipped, disk, disturbed, args):
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    print("### Conditions\n")
    print(f"- {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {os.cpu_count()} CPUs ({model}), "
          f"kernel {platform.release()}; server and clients share them, nice {os.nice(0)}")
    print(f"- disk: {spread(disk['append'])} durable 4 KiB appends/s, {spread(disk['preallocated'])} in a "
          "preallocated file, measured between the rounds")
    print(f"- other tasks that wanted a CPU just before a run: {statistics.mean(disturbed):.1f} on average, "
          f"{max(disturbed):.1f} at most")
    print(f"- {args.rounds} rounds, {args.seconds:g} s each after a warm-up; medians [lowest-highest]")
    for system in systems:
        print(f"- {system.name}: {system.version()}")
    for name, why in skipped:
        print(f"- **{name} was not measured**: {why}")


def numbers(text):
    return [int(part) for part in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=numbers, default=[1, 16, 64])
    parser.add_argument("--only", default="quorate,etcd,zookeeper")
    parser.add_argument("--no-handoff", dest="handoff", action="store_false")
    return parser.parse_args()


def main():
    args = arguments()
    os.makedirs(SCRATCH, exist_ok=True)
    try:
        os.nice(-10 - os.nice(0))
    except PermissionError:
        say("not privileged: runs at the usual priority, so other work disturbs more")
    systems, skipped = [], []
    for kind in (Quorate, Etcd, ZooKeeper):
        if kind.name not in args.only.split(","):
            continue
        system = kind()
        try:
            system.prepare()
            systems.append(system)
        except Skip as why:
            skipped.append((system.name, str(why)))
            say(f"SKIPPED {system.name}: {why}")
    if not systems:
        sys.exit("nothing to measure")
    results, disturbed, disk = {}, [], {"append": [], "preallocated": []}
    for number in range(args.rounds):
        disk["append"].append(fdatasync_rate(False))
        disk["preallocated"].append(fdatasync_rate(True))
        turn = number % len(systems)
        for system in systems[turn:] + systems[:turn]:
            one_round(number + 1, system, args, results, disturbed)
    conditions(systems, skipped, disk, disturbed, args)
    print_tables(systems, args, results)
    if skipped:
        sys.exit(1)


main()
