//! CPUs that this process may use.

use std::path::Path;

use crate::os;

/// CPUs by affinity and cgroup quota, at least 1. A quota counts by its whole CPUs.
pub fn usable() -> u32 {
    let affinity = os::affinity_count();
    quota(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"))
        .map_or(affinity, |quota| affinity.min(quota))
        .max(1)
}

/// What one of `count` processes may use, at least 1.
pub fn share(count: u32) -> u32 {
    (usable() / count.max(1)).max(1)
}

/// The smallest CPU quota from this process's cgroup up to the root, rounded down, at least 1 (cgroup-v2.rst, `cpu.max`;
/// for v1 sched-bwc.rst, `cpu.cfs_quota_us`).
fn quota(membership: &Path, mount: &Path) -> Option<u32> {
    let membership = std::fs::read_to_string(membership).ok()?;
    let groups = membership.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let root = match controllers {
            "" => mount.to_path_buf(),
            list if list.split(',').any(|name| name == "cpu") => mount.join(list),
            _ => return None,
        };
        Some((root, path.trim_start_matches('/').to_owned()))
    });
    groups
        .flat_map(|(root, path)| {
            let leaf = root.join(path);
            leaf.ancestors()
                .take_while(|group| group.starts_with(&root))
                .filter_map(group_quota)
                .collect::<Vec<_>>()
        })
        .min()
}

fn group_quota(group: &Path) -> Option<u32> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let (quota, period): (i64, i64) = if let Some(max) = read("cpu.max") {
        let (quota, period) = max.trim().split_once(' ')?;
        (quota.parse().ok()?, period.parse().ok()?)
    } else {
        (read("cpu.cfs_quota_us")?.trim().parse().ok()?, read("cpu.cfs_period_us")?.trim().parse().ok()?)
    };
    (quota > 0 && period > 0).then(|| u32::try_from(quota / period).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::{quota, share, usable};

    #[test]
    fn shares_are_at_least_one() {
        assert!(usable() >= 1);
        assert_eq!(share(usable() * 10), 1);
        assert_eq!(share(1), usable());
    }

    #[test]
    fn the_smallest_quota_on_the_way_up_counts() {
        let dir = std::env::temp_dir().join(format!("nl-quota-{}", std::process::id()));
        let leaf = dir.join("a/b");
        std::fs::create_dir_all(&leaf).unwrap();
        std::fs::write(dir.join("membership"), "0::/a/b\n").unwrap();
        std::fs::write(leaf.join("cpu.max"), "max 100000\n").unwrap();
        std::fs::write(dir.join("a/cpu.max"), "350000 100000\n").unwrap();
        let found = quota(&dir.join("membership"), &dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, Some(3));
    }
}
