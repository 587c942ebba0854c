//! The colours of pages and pictures: the tokens of `assets/tokens.css`, for output without a browser.

use std::sync::LazyLock;

/// The style sheet that declares every token.
pub(crate) const TOKENS: &str = include_str!("assets/tokens.css");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    Light,
    Dark,
}

/// The colour of a token in a theme, as `#rrggbb`.
///
/// # Panics
/// If the token is not declared.
pub(crate) fn color(token: &str, theme: Theme) -> &'static str {
    let declared = TOKENS.split_once(&format!("--{token}: light-dark("));
    let (_, pair) = declared.unwrap_or_else(|| panic!("no token `{token}`"));
    side(pair.split_once(')').expect("a CSS function is closed").0, theme)
}

const N_HEAT: usize = 10;

/// The scale of weights in each theme: the tokens `heat-0` to `heat-9`.
static HEAT: LazyLock<[[[u8; 3]; N_HEAT]; 2]> = LazyLock::new(|| {
    [Theme::Light, Theme::Dark].map(|theme| std::array::from_fn(|at| rgb(&format!("heat-{at}"), theme)))
});

/// The colour of a weight of `strength` in 0..=1, interpolated between the two nearest.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index is small")]
pub(crate) fn heat(theme: Theme, strength: f32) -> [u8; 3] {
    let colors = &HEAT[theme as usize];
    let at = strength * (N_HEAT - 1) as f32;
    let below = (at as usize).min(N_HEAT - 2);
    between(colors[below], colors[below + 1], at - below as f32)
}

/// The colour `fraction` of the way from one to the other, in 0..=1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a channel is 255 at most")]
pub(crate) fn between(one: [u8; 3], other: [u8; 3], fraction: f32) -> [u8; 3] {
    let mix = |a: u8, b: u8| (f32::from(a) * (1.0 - fraction) + f32::from(b) * fraction).round() as u8;
    std::array::from_fn(|channel| mix(one[channel], other[channel]))
}

/// Black or white, whichever is more readable on a colour: with a contrast of at least 4.5.
pub(crate) fn letters_on(color: [u8; 3]) -> [u8; 3] {
    // The luminance at which both contrasts are equal.
    if luminance(color) > 0.179 { [0; 3] } else { [255; 3] }
}

/// Source: WCAG 2.2, "relative luminance".
pub(crate) fn luminance(color: [u8; 3]) -> f64 {
    let [red, green, blue] = color.map(|channel| match f64::from(channel) / 255.0 {
        c if c <= 0.04045 => c / 12.92,
        c => ((c + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

pub(crate) fn rgb(token: &str, theme: Theme) -> [u8; 3] {
    let hex = color(token, theme);
    std::array::from_fn(|at| u8::from_str_radix(&hex[1 + 2 * at..3 + 2 * at], 16).expect("tokens are #rrggbb"))
}

pub(crate) fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The styles of a picture as a file, light or dark like the reader's system: not every SVG viewer supports `var(..)`
/// and `light-dark(..)`.
pub(crate) fn in_file(styles: &str) -> String {
    let [light, dark] = [Theme::Light, Theme::Dark].map(|theme| resolved(styles, theme));
    format!("\n{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

/// The styles with each `var(--token)` and `light-dark(..)` replaced by its colour.
fn resolved(styles: &str, theme: Theme) -> String {
    let css = replaced(styles, "var(--", |token| color(token, theme));
    replaced(&css, "light-dark(", |pair| side(pair, theme))
}

/// `text` with each `start` argument `)` replaced by `with(argument)`.
fn replaced<'a>(text: &'a str, start: &str, with: impl Fn(&'a str) -> &'a str) -> String {
    let mut parts = text.split(start);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (argument, rest) = part.split_once(')').expect("a CSS function is closed");
        whole += with(argument);
        whole += rest;
    }
    whole
}

fn side(pair: &str, theme: Theme) -> &str {
    let (light, dark) = pair.split_once(", ").expect("light-dark() has two colours");
    match theme {
        Theme::Light => light,
        Theme::Dark => dark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEMES: [Theme; 2] = [Theme::Light, Theme::Dark];

    fn luminance(token: &str, theme: Theme) -> f64 {
        super::luminance(rgb(token, theme))
    }

    /// Source: WCAG 2.2, "contrast ratio".
    fn contrast(one: f64, other: f64) -> f64 {
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// Every declared token.
    fn tokens() -> impl Iterator<Item = &'static str> {
        TOKENS.lines().filter_map(|line| Some(line.trim().strip_prefix("--")?.split_once(':')?.0))
    }

    #[test]
    fn tokens_have_enough_contrast() {
        for theme in THEMES {
            let held = |token: &str, ground: &str, least: f64| {
                let found = contrast(luminance(token, theme), luminance(ground, theme));
                assert!(found >= least, "{token} on {ground}, {theme:?}: {found:.2}");
            };
            for ground in ["paper", "panel"] {
                for text in ["ink", "quiet", "accent", "positive", "negative"] {
                    held(text, ground, 4.5);
                }
                for graphic in ["spark", "plain"] {
                    held(graphic, ground, 3.0);
                }
            }
            for series in tokens().filter(|token| token.starts_with("series-")) {
                held(series, "paper", 3.0);
            }
            held("on-accent", "accent", 4.5);
        }
    }

    /// The scale works without colours: away from the page colour it only gets lighter, or darker.
    #[test]
    fn heat_is_monotonic_in_luminance() {
        for theme in THEMES {
            let steps: Vec<f64> = (0..N_HEAT).map(|at| luminance(&format!("heat-{at}"), theme)).collect();
            let grows = steps.windows(2).all(|pair| (pair[1] > pair[0]) == (theme == Theme::Dark));
            assert!(grows, "{theme:?}: {steps:?}");
            assert!(contrast(steps[N_HEAT - 1], luminance("paper", theme)) > 12.0);
            // A label on a cell is black or white, whichever contrasts more.
            for at in 0..N_HEAT {
                let color = rgb(&format!("heat-{at}"), theme);
                let letters = super::luminance(letters_on(color));
                assert!(contrast(super::luminance(color), letters) >= 4.5, "{at}");
            }
        }
    }

    #[test]
    fn heat_interpolates() {
        let colors = [0.0, 0.5 / 9.0, 1.0 / 9.0, 1.0].map(|strength| heat(Theme::Dark, strength));
        assert_eq!(colors, [[0, 0, 4], [14, 6, 35], [27, 12, 65], [252, 255, 164]]);
    }

    /// Every colour of the pages is a token.
    #[test]
    fn styles_use_known_tokens() {
        let sheets = [crate::view::html::STYLE, crate::view::svg::plot::STYLE];
        for sheet in sheets {
            let used = sheet.split("var(--").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
            for token in used.filter(|token| !["sans", "mono"].contains(token)) {
                assert!(tokens().any(|known| known == token), "{token}");
            }
        }
    }
}
