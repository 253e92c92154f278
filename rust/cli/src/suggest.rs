//! Did you mean ...?

/// The candidate closest to what was typed, if it is close.
pub(crate) fn closest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (typed.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != typed)
        .map(|candidate| (strsim::damerau_levenshtein(typed, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean "x"?)`, or nothing.
pub(crate) fn hint<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    closest(typed, candidates).map_or_else(String::new, |name| format!(" (did you mean \"{name}\"?)"))
}

#[cfg(test)]
mod tests {
    use super::{closest, hint};

    #[test]
    fn a_slip_of_the_fingers_is_seen() {
        assert_eq!(closest("trian.py", ["test.py", "train.py"]), Some("train.py"));
        assert_eq!(closest("x", ["train.py"]), None);
        assert_eq!(hint("--garce", ["--grace"]), " (did you mean \"--grace\"?)");
    }
}
