//! The colours of charts: written once, with `light-dark(..)`, in `chart.css`.

use std::fmt::Write as _;

/// The styles of charts in a page.
pub(in crate::report) const STYLE: &str = include_str!("chart.css");

/// What a picture needs besides when it stands alone.
const STANDALONE: &str = "\
svg { background: light-dark(#ffffff, #0d1117); max-width: 100%; height: auto; font-family: system-ui, -apple-system, \
\"Segoe UI\", Roboto, \"Noto Sans\", sans-serif; }
";

/// In how many colours layers are drawn: classes `shade-0` and on. More could not be told apart.
pub(in crate::report) const N_SHADES: usize = 8;

/// The styles of a picture that stands alone. Not every viewer knows `light-dark(..)`: here it is a media query.
pub(in crate::report) fn standalone_style() -> String {
    let styles = [STANDALONE, STYLE].concat();
    let mut css = resolved(&styles, 0);
    writeln!(css, "@media (prefers-color-scheme: dark) {{\n{}}}", resolved(&styles, 1))
        .expect("a string");
    css
}

/// The styles with one of both colours of each `light-dark(..)`.
fn resolved(styles: &str, which: usize) -> String {
    let mut parts = styles.split("light-dark(");
    let mut css = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (colors, rest) = part.split_once(')').expect("a closing bracket");
        css.push_str(colors.split(", ").nth(which).expect("two colours"));
        css.push_str(rest);
    }
    css
}

/// The colour of a layer: those of a model are spread over all colours, from the first to the last.
pub(in crate::report) fn shade_of(layer: usize, n_layers: usize) -> usize {
    match n_layers {
        0 | 1 => 0,
        n => (2 * layer * (N_SHADES - 1) + n - 1) / (2 * (n - 1)), // rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_theme_has_its_colour() {
        let css = "a { fill: light-dark(#111111, #eeeeee); x: light-dark(#1, #2) }\n";
        assert_eq!(resolved(css, 0), "a { fill: #111111; x: #1 }\n");
        assert_eq!(resolved(css, 1), "a { fill: #eeeeee; x: #2 }\n");
        for which in [0, 1] {
            let css = resolved(&[STANDALONE, STYLE].concat(), which);
            assert_eq!(css.matches('{').count(), css.matches('}').count());
        }
    }

    #[test]
    fn every_shade_has_a_colour() {
        for shade in 0..N_SHADES {
            assert!(STYLE.contains(&format!(".shade-{shade} ")), "{shade}");
        }
    }

    #[test]
    fn layers_are_spread_over_all_shades() {
        let shades = |n| (0..n).map(|layer| shade_of(layer, n)).collect::<Vec<_>>();
        assert_eq!(shades(1), [0]);
        assert_eq!(shades(2), [0, 7]);
        assert_eq!(shades(4), [0, 2, 5, 7]);
        assert_eq!(shades(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        let many = shades(24);
        assert!(many.windows(2).all(|pair| pair[1] - pair[0] <= 1));
        assert_eq!((many[0], many[23]), (0, 7));
    }
}
