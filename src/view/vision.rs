//! Test support: how different two colours look, with and without colour vision deficiencies.

#![allow(clippy::unreadable_literal, reason = "numbers stand as they were published")]

use palette::color_difference::Ciede2000;
use palette::white_point::D65;
use palette::{FromColor, GetHue, Lab, LinSrgb, Srgb};

use crate::view::svg::plot::N_SERIES;
use crate::view::theme::{Theme, rgb};

/// A colour vision deficiency, as a matrix on linear RGB. Source: Machado, Oliveira, Fernandes 2009, "A
/// Physiologically-based Model for Simulation of Color Vision Deficiency", the tables for severity 1.0.
const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
    ("nothing", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    ("protanopia", [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    (
        "deuteranopia",
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ),
    ("tritanopia", [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
];

fn seen(color: LinSrgb<f64>, vision: [[f64; 3]; 3]) -> Lab<D65, f64> {
    let rgb: [f64; 3] = color.into();
    let seen = vision.map(|row| row.iter().zip(rgb).map(|(factor, c)| factor * c).sum::<f64>().clamp(0.0, 1.0));
    Lab::from_color(LinSrgb::from(seen))
}

/// A head that a reader knows by its colour has that colour in the other theme, too.
#[test]
fn series_have_one_hue_in_both_themes() {
    for at in 0..N_SERIES {
        let [light, dark] = [Theme::Light, Theme::Dark].map(|theme| {
            let color = Srgb::from(rgb(&format!("series-{at}"), theme)).into_linear::<f64>();
            Lab::<D65, f64>::from_color(color).get_hue()
        });
        let apart = (light - dark).into_degrees().abs();
        assert!(apart < 20.0, "series {at}: {apart:.0} degrees");
    }
}

#[test]
fn series_differ_with_colour_vision_deficiencies() {
    for theme in [Theme::Light, Theme::Dark] {
        let series = |at: usize| Srgb::from(rgb(&format!("series-{at}"), theme)).into_linear();
        let colors: Vec<LinSrgb<f64>> = (0..N_SERIES).map(series).collect();
        for (lack, vision) in VISIONS {
            let seen: Vec<_> = colors.iter().map(|color| self::seen(*color, vision)).collect();
            for one in 0..N_SERIES {
                for other in 0..one {
                    // About 2 is just noticeable side by side.
                    let difference = seen[one].difference(seen[other]);
                    assert!(difference >= 10.0, "{one} and {other} are {difference:.1} apart to eyes that lack {lack}");
                }
            }
        }
        let lightness: Vec<f64> = colors.iter().map(|color| Lab::from_color(*color).l).collect();
        assert!(lightness.windows(2).all(|pair| pair[1] > pair[0] - 1.0), "from dark to light: {lightness:?}");
        assert!(lightness[N_SERIES - 1] - lightness[0] > 20.0, "also without colours: {lightness:?}");
    }
}
