//! Which rank each worker is, and the variables that tell it.

use std::ffi::OsString;

use crate::error::Error;

/// Workers on one node: far above what a machine can use, and far below what would fill its memory.
const MOST_WORKERS: u32 = 10_000;

/// Which variables tell a worker its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RankEnv {
    /// What `torchrun` sets (PyTorch documents the list under "Environment Variables" of Elastic Launch), and `NODE_RANK`.
    #[default]
    Torch,
    /// What Lightning's own launcher sets: `MASTER_ADDR`, `MASTER_PORT`, `NODE_RANK`, `LOCAL_RANK`, `WORLD_SIZE`.
    Lightning,
    /// None.
    None,
}

/// The shape of a job: nodes, workers per node, and where rank 0 listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Number of nodes.
    pub nnodes: u32,
    /// This node, from 0.
    pub node_rank: u32,
    /// Workers on every node.
    pub nproc_per_node: u32,
    /// Where rank 0 listens.
    pub main_address: String,
    /// The port rank 0 listens on.
    pub main_port: u16,
}

impl Topology {
    /// Refuses counts of 0, more workers than any node has room for, a node rank out of range, and a world that does not fit 32 bits.
    pub fn check(&self) -> Result<(), Error> {
        if self.nproc_per_node == 0 {
            return Err(Error::usage("nproc_per_node must be at least 1: 0"));
        }
        if self.nproc_per_node > MOST_WORKERS {
            return Err(Error::usage(format!(
                "nproc_per_node must be at most {MOST_WORKERS}: {}",
                self.nproc_per_node
            )));
        }
        if self.nnodes == 0 {
            return Err(Error::usage("nnodes must be at least 1: 0"));
        }
        if self.node_rank >= self.nnodes {
            return Err(Error::usage(format!(
                "node_rank must be below nnodes ({}): {}",
                self.nnodes, self.node_rank
            )));
        }
        match self.nnodes.checked_mul(self.nproc_per_node) {
            Some(_) => Ok(()),
            None => Err(Error::usage(format!(
                "nnodes x nproc_per_node is too large: {} x {}",
                self.nnodes, self.nproc_per_node
            ))),
        }
    }

    /// Workers on all nodes.
    pub fn world_size(&self) -> u32 {
        self.nnodes * self.nproc_per_node
    }

    /// The rank of this node's worker `local_rank`: every node has the same number of workers.
    pub fn rank(&self, local_rank: u32) -> u32 {
        self.node_rank * self.nproc_per_node + local_rank
    }

    /// The variables of worker `local_rank`; `job` becomes `TORCHELASTIC_RUN_ID`.
    pub fn rank_variables(&self, kind: RankEnv, local_rank: u32, job: &str) -> Vec<(&'static str, OsString)> {
        let rank = self.rank(local_rank).to_string();
        let world = self.world_size().to_string();
        let base = [
            ("MASTER_ADDR", self.main_address.clone()),
            ("MASTER_PORT", self.main_port.to_string()),
            ("NODE_RANK", self.node_rank.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("WORLD_SIZE", world.clone()),
        ];
        let torch = [
            ("RANK", rank.clone()),
            ("GROUP_RANK", self.node_rank.to_string()),
            ("ROLE_RANK", rank),
            ("ROLE_NAME", "default".into()),
            ("LOCAL_WORLD_SIZE", self.nproc_per_node.to_string()),
            ("GROUP_WORLD_SIZE", self.nnodes.to_string()),
            ("ROLE_WORLD_SIZE", world),
            ("TORCHELASTIC_RESTART_COUNT", "0".into()),
            ("TORCHELASTIC_MAX_RESTARTS", "0".into()),
            ("TORCHELASTIC_RUN_ID", job.into()),
            ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
            ("TORCHELASTIC_ERROR_FILE", String::new()),
        ];
        let own = |(name, value): (&'static str, String)| (name, value.into());
        match kind {
            RankEnv::None => Vec::new(),
            RankEnv::Lightning => base.into_iter().map(own).collect(),
            RankEnv::Torch => base.into_iter().chain(torch).map(own).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RankEnv, Topology};

    fn two_by_four() -> Topology {
        Topology {
            nnodes: 2,
            node_rank: 1,
            nproc_per_node: 4,
            main_address: "10.0.0.1".into(),
            main_port: 29500,
        }
    }

    #[test]
    fn ranks_count_over_nodes() {
        let topology = two_by_four();
        topology.check().unwrap();
        assert_eq!(topology.world_size(), 8);
        assert_eq!(topology.rank(3), 7);
    }

    #[test]
    fn bad_counts_are_refused_by_name() {
        for (topology, field) in [
            (Topology { nproc_per_node: 0, ..two_by_four() }, "nproc_per_node"),
            (Topology { nnodes: 0, ..two_by_four() }, "nnodes"),
            (Topology { node_rank: 2, ..two_by_four() }, "node_rank"),
            (Topology { nnodes: u32::MAX, ..two_by_four() }, "nnodes x nproc_per_node"),
        ] {
            let text = topology.check().unwrap_err().to_string();
            assert!(text.starts_with(field), "{text}");
        }
    }

    #[test]
    fn lightning_children_are_no_torchelastic_ranks() {
        let names: Vec<_> = two_by_four()
            .rank_variables(RankEnv::Lightning, 0, "j")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"]);
    }

    #[test]
    fn torch_workers_get_what_torchrun_sets() {
        let variables = two_by_four().rank_variables(RankEnv::Torch, 2, "j");
        let get = |name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_str().unwrap());
        for (name, value) in [
            ("RANK", "6"),
            ("LOCAL_RANK", "2"),
            ("GROUP_RANK", "1"),
            ("NODE_RANK", "1"),
            ("ROLE_RANK", "6"),
            ("ROLE_NAME", "default"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("WORLD_SIZE", "8"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_WORLD_SIZE", "8"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
            ("TORCHELASTIC_RUN_ID", "j"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("TORCHELASTIC_ERROR_FILE", ""),
        ] {
            assert_eq!(get(name), Some(value), "{name}");
        }
    }
}
