//! Compares the model with published figures and keeps the table in `MODEL.md` up to date.

use super::choice::Enabled;
use super::preset::Preset;
use super::tuning::{Choice, Function, World, choose};

/// A measured all-reduce.
struct Published {
    machine: &'static str,
    topology: &'static str,
    world: World,
    algorithm: Option<&'static str>,
    bytes: u64,
    measured: Measured,
    /// The maximum error that the model may have. `None`: the table only states the error.
    within: Option<f64>,
    source: &'static str,
}

#[derive(Clone, Copy)]
enum Measured {
    /// GB/s, as nccl-tests defines it.
    BusBandwidth(f64),
    Microseconds(f64),
}

/// Three nodes, each with half of a DGX A100's adapters.
const FOUR_ADAPTERS: &str =
    "name = \"a100-4xhdr\"\nlike = \"dgx-a100\"\n[nccl]\nnetwork_bytes_per_s = 96e9\n";

const NODE: World = World { ranks: 8, nodes: 1 };

const PUBLISHED: [Published; 10] = [
    Published {
        machine: "8 H100 SXM",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        measured: Measured::BusBandwidth(478.0),
        within: Some(0.10),
        source: "nccl-tests, 476 to 480 GB/s",
    },
    Published {
        machine: "8 H100 SXM, `NCCL_ALGO=Ring`",
        topology: "dgx-h100",
        world: NODE,
        algorithm: Some("Ring"),
        bytes: 8 << 30,
        measured: Measured::BusBandwidth(370.0),
        within: Some(0.10),
        source: "nccl-tests",
    },
    Published {
        machine: "8 H200 SXM",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        measured: Measured::BusBandwidth(475.0),
        within: Some(0.10),
        source: "nccl-tests; it has the same links as an H100",
    },
    Published {
        machine: "4 H100 SXM",
        topology: "dgx-h100",
        world: World { ranks: 4, nodes: 1 },
        algorithm: None,
        bytes: 8 << 30,
        measured: Measured::BusBandwidth(366.0),
        within: Some(0.10),
        source: "nccl-tests",
    },
    Published {
        machine: "8 A100 SXM",
        topology: "dgx-a100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        measured: Measured::BusBandwidth(200.0),
        within: Some(0.10),
        source: "NVIDIA/nccl-tests#149; the preset's `efficiency` is fitted to it",
    },
    Published {
        machine: "3 nodes of 8 A100, 4 HDR adapters each",
        topology: FOUR_ADAPTERS,
        world: World { ranks: 24, nodes: 3 },
        algorithm: None,
        bytes: 128 << 20,
        measured: Measured::BusBandwidth(96.0),
        within: None,
        source: "NVIDIA/nccl-tests#119",
    },
    Published {
        machine: "8 H20",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 16,
        measured: Measured::Microseconds(12.5),
        within: Some(0.25),
        source: "nccl-tests; it has the same links as an H100",
    },
    Published {
        machine: "8 H20",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 4 << 10,
        measured: Measured::Microseconds(16.7),
        within: Some(0.25),
        source: "nccl-tests",
    },
    Published {
        machine: "2 nodes of 8 H100, `NCCL_ALGO=Tree`",
        topology: "dgx-h100",
        world: World { ranks: 16, nodes: 2 },
        algorithm: Some("Tree"),
        bytes: 8,
        measured: Measured::Microseconds(25.207),
        within: Some(0.25),
        source: "NCCL's own log of its model",
    },
    Published {
        machine: "8 RTX 4090 on PCIe, `NCCL_ALGO=Tree`",
        topology: "pcie",
        world: NODE,
        algorithm: Some("Tree"),
        bytes: 8,
        measured: Measured::Microseconds(42.6),
        within: None,
        source: "NVIDIA/nccl#1530: cards without peer-to-peer access, which the model does not cover",
    },
];

impl Published {
    fn choice(&self) -> Choice {
        let preset = Preset::find(self.topology).or_else(|_| Preset::from_toml(self.topology)).unwrap();
        let enabled = Enabled::parse(self.algorithm, None).unwrap();
        choose(&preset, &enabled, Function::AllReduce, self.world, self.bytes, true).unwrap()
    }

    /// Returns the model's figure and the published figure.
    fn figures(&self, choice: Choice) -> (f64, f64) {
        let nanoseconds = choice.nanoseconds as f64;
        match self.measured {
            Measured::BusBandwidth(published) => {
                let ranks = self.world.ranks as f64;
                (self.bytes as f64 / nanoseconds * 2.0 * (ranks - 1.0) / ranks, published)
            }
            Measured::Microseconds(published) => (nanoseconds / 1e3, published),
        }
    }

    fn row(&self) -> String {
        let choice = self.choice();
        let (modeled, published) = self.figures(choice);
        let unit = match self.measured {
            Measured::BusBandwidth(_) => "GB/s",
            Measured::Microseconds(_) => "µs",
        };
        let size = match self.bytes {
            bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let error = 100.0 * (modeled / published - 1.0);
        format!(
            "| {} | {size} | {}, {} | {modeled:.1} {unit} | {published} {unit} | {error:+.1}% | {} |\n",
            self.machine,
            choice.algorithm.name(),
            choice.protocol.name(),
            self.source
        )
    }
}

const BEGIN: &str = "<!-- table: written by `BLESS=1 cargo test -p virtual-gpu --lib published` -->\n";
const END: &str = "<!-- end of table -->";

#[test]
fn the_model_is_within_the_errors_that_it_allows() {
    for published in &PUBLISHED {
        let (modeled, measured) = published.figures(published.choice());
        if let Some(within) = published.within {
            assert!((modeled / measured - 1.0).abs() <= within, "{}", published.row());
        }
    }
}

#[test]
fn the_table_in_model_md_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/MODEL.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table's beginning is marked");
    let (table, after) = rest.split_once(END).expect("the table's end is marked");
    let mut made = "\n| all-reduce of | bytes | chosen | modeled | published | error | source |\n".to_owned();
    made.push_str("|---|---|---|---|---|---|---|\n");
    made.extend(PUBLISHED.iter().map(Published::row));
    made.push('\n');
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &made, END, after].concat()).unwrap();
    } else {
        assert_eq!(table, made, "BLESS=1 cargo test -p virtual-gpu --lib published");
    }
}
